//! The kernels of queues: copies inside the device.

use std::sync::Arc;

use quire_kernels::{Buffer, Tensor};

use crate::Error;
use crate::launch::Grid;
use crate::memory::address;
use crate::module::{Kernel, Modules};

/// Threads a block of `copy_rows`.
const THREADS: u32 = 256;

/// Bytes that a block of `copy_rows` moves at most before it goes on to its next part of the row.
const BLOCK_BYTES: usize = 16 << 10;

/// The kernels of the families `copy` and `swap`.
pub(crate) struct CopyKernels {
    pub(crate) rows: Kernel,
    pub(crate) writes: Kernel,
    pub(crate) swaps: Kernel,
    /// Fails the device.
    pub(crate) fault: Kernel,
}

impl CopyKernels {
    pub(crate) fn load(modules: &Modules) -> Result<Self, Error> {
        Ok(Self {
            rows: modules.kernel("copy", "copy_rows")?,
            writes: modules.kernel("copy", "copy_writes")?,
            swaps: modules.kernel("swap", "swap_rows")?,
            fault: modules.kernel("copy", "copy_fault")?,
        })
    }
}

/// `CopyRowsParams` of `cuda/copy.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CopyRowsParams {
    rows: u64,
    pairs: u64,
    row_bytes: u64,
    stride_bytes: u64,
}

/// Copies of rows inside one tensor.
pub(crate) struct RowCopies {
    rows: u64,
    row_bytes: usize,
    stride_bytes: usize,
}

impl RowCopies {
    /// Pairs of one launch at most.
    pub(crate) const MAX_PAIRS: usize = 1 << 16;

    /// # Panics
    ///
    /// Where a pair leaves the tensor.
    pub(crate) fn of(tensor: &Tensor, pairs: &[(u32, u32)]) -> Self {
        let bytes_for = |n: usize| tensor.dtype().bytes_for(n).expect("a row holds whole blocks");
        let num_rows = tensor.num_rows();
        let is_inside = |row: u32| (row as usize) < num_rows;
        assert!(
            pairs.iter().all(|&(from, to)| is_inside(from) && is_inside(to)),
            "rows that are copied lie in {tensor:?}"
        );
        Self {
            rows: address(tensor),
            row_bytes: bytes_for(tensor.num_columns()),
            stride_bytes: bytes_for(tensor.row_stride()),
        }
    }

    /// The launch for `num_pairs` pairs at an address that the device reads.
    pub(crate) fn launch(&self, pairs: u64, num_pairs: usize) -> (Grid, CopyRowsParams) {
        let parts = self.row_bytes.div_ceil(BLOCK_BYTES).min(1 << 15);
        let grid = Grid {
            blocks: [num_pairs as u32, parts as u32, 1],
            threads: THREADS,
            shared_bytes: 0,
            overlaps: false,
        };
        let (row_bytes, stride_bytes) = (self.row_bytes as u64, self.stride_bytes as u64);
        (grid, CopyRowsParams { rows: self.rows, pairs, row_bytes, stride_bytes })
    }
}

/// One of [`SmallWrites`], `Write` of `cuda/copy.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SmallWrite {
    to: u64,
    from: u64,
    num_bytes: u64,
}

/// `CopyWritesParams` of `cuda/copy.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CopyWritesParams {
    writes: [SmallWrite; SmallWrites::MAX_WRITES],
}

/// Writes that wait to be done by one kernel. No two write the same byte, since the kernel does them in any order.
#[derive(Debug, Default)]
pub(crate) struct SmallWrites {
    writes: [SmallWrite; SmallWrites::MAX_WRITES],
    num_writes: usize,
    /// What they write to: a tensor that is dropped after a write lives until the write is enqueued.
    targets: Vec<Arc<dyn Buffer>>,
}

impl SmallWrites {
    /// Writes of one kernel.
    pub(crate) const MAX_WRITES: usize = 32;

    /// Bytes of a write at most. The device reads them from the host through its processors, which is the fastest
    /// way for a few bytes only.
    pub(crate) const MAX_BYTES: usize = 32 << 10;

    /// Bytes that a block of `copy_writes` does.
    const BLOCK_BYTES: usize = 16 * THREADS as usize;

    /// Whether the write may be done together with those that wait.
    pub(crate) fn takes(&self, to: u64, num_bytes: usize) -> bool {
        let end = to + num_bytes as u64;
        let is_apart = |write: &SmallWrite| end <= write.to || write.to + write.num_bytes <= to;
        self.num_writes < Self::MAX_WRITES && self.writes[..self.num_writes].iter().all(is_apart)
    }

    /// Adds a write of a tensor that [`takes`](Self::takes) has let in, from an address that the device reads.
    pub(crate) fn push(&mut self, to: &Tensor, from: u64) {
        self.add(address(to), from, to.span_bytes());
        if self.targets.last().is_none_or(|last| !Arc::ptr_eq(last, to.buffer())) {
            self.targets.push(to.buffer().clone());
        }
    }

    /// The launch that does all that wait, if any do. Once it is enqueued, [`clear`](Self::clear).
    pub(crate) fn launch(&self) -> Option<(Grid, CopyWritesParams)> {
        let writes = &self.writes[..self.num_writes];
        let longest = writes.iter().map(|write| write.num_bytes).max()?;
        let parts = (longest as usize).div_ceil(Self::BLOCK_BYTES);
        let blocks = [self.num_writes as u32, parts as u32, 1];
        let grid = Grid { blocks, threads: THREADS, shared_bytes: 0, overlaps: false };
        Some((grid, CopyWritesParams { writes: self.writes }))
    }

    /// None waits any more.
    pub(crate) fn clear(&mut self) {
        self.num_writes = 0;
        self.targets.clear();
    }

    fn add(&mut self, to: u64, from: u64, num_bytes: usize) {
        self.writes[self.num_writes] = SmallWrite { to, from, num_bytes: num_bytes as u64 };
        self.num_writes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_wait_together_until_two_touch_or_there_are_too_many() {
        let mut writes = SmallWrites::default();
        assert!(writes.launch().is_none());
        for i in 0..SmallWrites::MAX_WRITES as u64 {
            assert!(writes.takes(i * 100, 100));
            writes.add(i * 100, 0, 100);
            assert!(!writes.takes(i * 100 + 99, 1) && !writes.takes(0, 1 << 20));
        }
        assert!(!writes.takes(1 << 40, 1), "there is no room");
        let (grid, _) = writes.launch().unwrap();
        assert_eq!(grid.blocks, [SmallWrites::MAX_WRITES as u32, 1, 1]);
        writes.clear();
        assert!(writes.takes(0, 1) && writes.launch().is_none());
    }

    #[test]
    fn the_grid_covers_the_longest_write() {
        let mut writes = SmallWrites::default();
        writes.add(0, 0, 1);
        writes.add(1 << 20, 0, SmallWrites::BLOCK_BYTES + 1);
        assert_eq!(writes.launch().unwrap().0.blocks, [2, 2, 1]);
    }
}
