//! The kernels of queues: copies inside the device.

use quire_kernels::Tensor;

use crate::Error;
use crate::launch::Grid;
use crate::memory::address;
use crate::module::{Kernel, Modules};

/// Threads a block of `copy_rows`.
const THREADS: u32 = 256;

/// Bytes that a block of `copy_rows` moves at most before it goes on to its next part of the row.
const BLOCK_BYTES: usize = 16 << 10;

/// The kernels of the family `copy`.
pub(crate) struct CopyKernels {
    pub(crate) rows: Kernel,
}

impl CopyKernels {
    pub(crate) fn load(modules: &Modules) -> Result<Self, Error> {
        Ok(Self { rows: modules.kernel("copy", "copy_rows")? })
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
