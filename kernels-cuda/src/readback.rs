//! Bytes on their way to the host.

use std::sync::Arc;

use quire_kernels::{PendingRead, Result};

use crate::event::{Event, Wait};
use crate::pinned::{PinnedBlock, PinnedPool};

/// A copy into pinned memory. One that nobody waits for gives its memory back with the event behind it.
pub(crate) struct CudaRead {
    pool: Arc<PinnedPool>,
    num_bytes: usize,
    /// Present until it is waited for.
    copy: Option<(PinnedBlock, Event)>,
}

impl CudaRead {
    /// The first `num_bytes` of `block`, once `event` is over.
    pub(crate) fn new(pool: Arc<PinnedPool>, block: PinnedBlock, event: Event, num_bytes: usize) -> Self {
        Self { pool, num_bytes, copy: Some((block, event)) }
    }
}

impl PendingRead for CudaRead {
    fn wait(mut self: Box<Self>) -> Result<Vec<u8>> {
        let (block, event) = self.copy.take().expect("a read is waited for once");
        if let Err(error) = event.wait(Wait::Awake) {
            self.copy = Some((block, event));
            return Err(error);
        }
        // SAFETY: the block is this long, and the copy that wrote these bytes is over.
        let bytes = unsafe { std::slice::from_raw_parts(block.start(), self.num_bytes) }.to_vec();
        self.pool.give(block, Some(event));
        Ok(bytes)
    }
}

impl Drop for CudaRead {
    fn drop(&mut self) {
        if let Some((block, event)) = self.copy.take() {
            self.pool.give(block, Some(event));
        }
    }
}
