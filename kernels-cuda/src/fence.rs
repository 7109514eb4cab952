//! Places in streams that other streams and the host wait for.

use std::any::Any;
use std::sync::Arc;

use quire_kernels::{Fence, Result};

use crate::context::Context;
use crate::event::{Event, Wait};
use crate::ffi::CUstream;

/// A place in a stream.
pub(crate) struct CudaFence {
    context: Arc<Context>,
    event: Event,
}

impl CudaFence {
    /// The end of what was enqueued so far; the context is current.
    pub(crate) fn set(context: &Arc<Context>, stream: CUstream) -> Result<Arc<dyn Fence>> {
        let event = Event::new(context)?;
        event.record(stream)?;
        Ok(Arc::new(Self { context: context.clone(), event }))
    }

    /// Lets a stream wait, and the host not.
    ///
    /// # Panics
    ///
    /// Where the fence is one of another backend.
    pub(crate) fn hold_back(fence: &dyn Fence, stream: CUstream) -> Result<()> {
        let fence: &Self = (fence as &dyn Any).downcast_ref().expect("a fence of a CUDA device");
        fence.event.hold_back(stream)
    }
}

impl Fence for CudaFence {
    fn is_reached(&self) -> Result<bool> {
        self.context.bind()?;
        self.event.is_over()
    }

    fn wait(&self) -> Result<()> {
        self.event.wait(Wait::Awake)
    }
}
