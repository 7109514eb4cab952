//! Places of a stream, by the device's clock.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use quire_kernels::{Mark, Result};

use crate::context::Context;
use crate::event::Event;
use crate::ffi::CUstream;

/// A place of a stream.
pub(crate) struct CudaMark {
    event: Event,
}

impl CudaMark {
    /// The end of what was enqueued so far; the context is current.
    pub(crate) fn new(context: &Arc<Context>, stream: CUstream) -> Result<Self> {
        let event = Event::timed(context)?;
        event.record(stream)?;
        Ok(Self { event })
    }
}

impl Mark for CudaMark {
    fn since(&self, earlier: &dyn Mark) -> Option<Duration> {
        let earlier: &Self = (earlier as &dyn Any).downcast_ref()?;
        self.event.since(&earlier.event)
    }
}
