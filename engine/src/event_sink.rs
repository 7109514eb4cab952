//! Where the events of a request go, and what holds the request meanwhile.

use std::fmt;
use std::time::Instant;

use crate::RequestEvent;

/// Takes the events of a request, on the engine's thread: whoever has more to do with them than to put them down does it
/// elsewhere. One that is dropped before an end was sent must tell its listener so: the engine's thread may be gone before
/// it has seen a request.
pub trait EventSink: Send {
    /// Takes an event that has come about at that moment: when a step was committed, say. Whoever listened may be gone; that
    /// is no error.
    fn send_at(&mut self, event: RequestEvent, moment: Instant);

    /// Takes an event of now.
    fn send(&mut self, event: RequestEvent) {
        self.send_at(event, Instant::now());
    }

    /// Whether pieces are wanted, and not the end alone.
    fn wants_deltas(&self) -> bool {
        true
    }
}

/// A request that has not ended, as far as its holder knows. Dropping it gives the request up and frees its blocks within a
/// step.
pub struct RequestHandle(Option<Box<dyn FnOnce() + Send>>);

impl RequestHandle {
    /// A handle; `abort` runs if it is dropped.
    pub fn new(abort: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(abort)))
    }

    /// The request has ended: there is nothing to give up.
    pub fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if let Some(abort) = self.0.take() {
            abort();
        }
    }
}

impl fmt::Debug for RequestHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHandle")
    }
}
