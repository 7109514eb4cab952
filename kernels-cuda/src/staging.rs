//! Where bytes on their way to the device wait.

use std::sync::Arc;

use quire_kernels::Result;

use crate::context::Context;
use crate::event::{Event, Wait};
use crate::ffi::CUstream;
use crate::pinned::{PinnedBlock, PinnedPool};
use crate::ring::Ring;

/// Pinned bytes on their way to the device, at most.
const RING_BYTES: usize = 4 << 20;

/// Bytes that are put there at once, at most.
pub(crate) const MAX_BYTES: usize = RING_BYTES / 4;

/// Pinned memory that writes go through, made at the first write.
pub(crate) struct Staging {
    block: PinnedBlock,
    ring: Ring<Event>,
    /// Events that are over.
    spare: Vec<Event>,
}

impl Staging {
    pub(crate) fn new(pinned: &PinnedPool) -> Result<Self> {
        let (block, _) = pinned.take(RING_BYTES)?;
        let ring = Ring::new(block.num_bytes());
        Ok(Self { block, ring, spare: Vec::new() })
    }

    /// Where the bytes lie now, or `None` where there is no room or a fence is due.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Option<*mut u8> {
        if self.ring.wants_fence() {
            return None;
        }
        let start = self.ring.take(bytes.len())?;
        // SAFETY: the ring lies in the block, and the device is done with these bytes.
        unsafe {
            let target = self.block.start().add(start);
            target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Some(target)
        }
    }

    /// Sets a fence behind what was put so far, or waits for the oldest one.
    pub(crate) fn make_room(&mut self, context: &Arc<Context>, stream: CUstream) -> Result<()> {
        if self.ring.wants_fence() {
            return self.fence(context, stream);
        }
        let Some((mark, event)) = self.ring.oldest_fence() else {
            return self.fence(context, stream);
        };
        event.wait(Wait::Awake)?;
        self.ring.release(mark);
        self.spare.push(event);
        Ok(())
    }

    fn fence(&mut self, context: &Arc<Context>, stream: CUstream) -> Result<()> {
        let event = self.spare.pop().map_or_else(|| Event::new(context), Ok)?;
        event.record(stream)?;
        self.ring.fence(event);
        Ok(())
    }

    /// Gives the memory back; the device does not use it any more.
    pub(crate) fn give_back(self, pinned: &PinnedPool) {
        pinned.give(self.block, None);
    }
}
