//! How calls of the driver behave while a thread records a graph.

use crate::ffi;

/// While it lives, this thread may allocate and free although a stream of it records: neither is enqueued.
pub(crate) struct Relaxed {
    before: u32,
}

impl Relaxed {
    pub(crate) fn enter() -> Self {
        let mut mode = ffi::CAPTURE_RELAXED;
        // SAFETY: the mode is exchanged with this thread's.
        unsafe { ffi::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self { before: mode }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { ffi::cuThreadExchangeStreamCaptureMode(&mut self.before) };
    }
}
