//! Places of a stream, by the device's clock.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quire_kernels::{Mark, Result};

use crate::context::Context;
use crate::event::Event;
use crate::ffi::CUstream;

/// Events that marks have left. A step has two: they are made once. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct SpareMarks(Arc<Mutex<Vec<Event>>>);

/// A place of a stream.
pub(crate) struct CudaMark {
    /// Present until it is dropped.
    event: Option<Event>,
    spare: SpareMarks,
}

impl CudaMark {
    /// The end of what was enqueued so far; the context is current.
    pub(crate) fn new(context: &Arc<Context>, spare: &SpareMarks, stream: CUstream) -> Result<Self> {
        let used = spare.0.lock().pop();
        let event = used.map_or_else(|| Event::timed(context), Ok)?;
        event.record(stream)?;
        Ok(Self { event: Some(event), spare: spare.clone() })
    }

    fn event(&self) -> &Event {
        self.event.as_ref().expect("only drop takes it")
    }
}

impl Drop for CudaMark {
    fn drop(&mut self) {
        // One that is still ahead is recorded anew: nobody else asks for it.
        self.spare.0.lock().extend(self.event.take());
    }
}

impl Mark for CudaMark {
    fn since(&self, earlier: &dyn Mark) -> Option<Duration> {
        let earlier: &Self = (earlier as &dyn Any).downcast_ref()?;
        self.event().since(earlier.event())
    }
}
