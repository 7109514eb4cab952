//! Host memory that the device copies from and to by itself.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use parking_lot::Mutex;
use quire_kernels::{Error, Result};

use crate::capture::Relaxed;
use crate::context::Context;
use crate::event::{Event, Wait};
use crate::ffi;

/// The smallest block.
const MIN_BYTES: usize = 4096;

/// A run of pinned memory, readable by kernels at the same address. Who may touch which of its bytes, and when,
/// is its owner's business.
pub(crate) struct PinnedBlock {
    context: Arc<Context>,
    start: NonNull<u8>,
    num_bytes: usize,
}

// SAFETY: a block owns its bytes like a `Box<[u8]>`; the pointer is shared with nobody but the device.
unsafe impl Send for PinnedBlock {}
// SAFETY: a shared block only hands out its address and its size.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    pub(crate) fn new(context: &Arc<Context>, num_bytes: usize) -> Result<Self> {
        context.bind()?;
        let _relaxed = Relaxed::enter();
        let mut start: *mut c_void = null_mut();
        let flags = ffi::HOST_PORTABLE | ffi::HOST_MAPPED;
        // SAFETY: an address is written.
        match unsafe { ffi::cuMemHostAlloc(&mut start, num_bytes, flags) } {
            ffi::OUT_OF_MEMORY => return Err(refused(num_bytes)),
            code => context.check("cuMemHostAlloc", code)?,
        }
        let start = NonNull::new(start.cast()).expect("the driver returns no null with a success");
        Ok(Self { context: context.clone(), start, num_bytes })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.num_bytes
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _relaxed = Relaxed::enter();
            // SAFETY: allocated by the driver, freed once; the owner has waited for the device.
            unsafe { ffi::cuMemFreeHost(self.start().cast()) };
        }
    }
}

/// The system pins no more memory; how much it would is not known.
fn refused(wanted_bytes: usize) -> Error {
    Error::OutOfMemory { device: "host (pinned memory)".to_owned(), wanted_bytes, free_bytes: 0 }
}

/// Pinned blocks that are used again, since pinning takes as long as a small step.
pub(crate) struct PinnedPool {
    context: Arc<Context>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    block: PinnedBlock,
    /// The copy that may still be under way.
    last_use: Option<Event>,
}

impl PinnedPool {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), idle: Mutex::new(Vec::new()) }
    }

    /// A block of at least `num_bytes` that the device does not use, and perhaps an event to use again.
    pub(crate) fn take(&self, num_bytes: usize) -> Result<(PinnedBlock, Option<Event>)> {
        let num_bytes = num_bytes.max(MIN_BYTES).checked_next_power_of_two();
        let num_bytes = num_bytes.ok_or_else(|| refused(usize::MAX))?;
        let Some(Idle { block, last_use }) = self.take_idle(num_bytes) else {
            return Ok((PinnedBlock::new(&self.context, num_bytes)?, None));
        };
        if let Some(event) = &last_use {
            event.wait(Wait::Awake)?;
        }
        Ok((block, last_use))
    }

    /// Gives a block back; the device may use it until the event is over.
    pub(crate) fn give(&self, block: PinnedBlock, last_use: Option<Event>) {
        self.idle.lock().push(Idle { block, last_use });
    }

    /// Frees the blocks that are idle now.
    pub(crate) fn release(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for Idle { last_use, .. } in &idle {
            // What a lost device was to do, it does no more.
            let _ = last_use.as_ref().map(|event| event.wait(Wait::Asleep));
        }
    }

    fn take_idle(&self, num_bytes: usize) -> Option<Idle> {
        let mut idle = self.idle.lock();
        let place = idle.iter().position(|entry| entry.block.num_bytes() == num_bytes)?;
        Some(idle.swap_remove(place))
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        self.release();
    }
}
