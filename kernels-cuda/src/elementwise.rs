//! What the element-wise parts share: whether rows can be read 16 bytes at a time, and grids over elements.

use quire_kernels::{DType, Tensor};

use crate::launch::Grid;
use crate::memory::address;

/// Threads a block where nothing else is asked for.
pub(crate) const THREADS: u32 = 256;

/// Elements of 16 bits that a thread handles at once.
pub(crate) const VECTOR: usize = 8;

/// Whether every row starts at a multiple of 16 bytes and is a whole number of 16-byte vectors long.
pub(crate) fn are_vectors(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| {
        let is_whole = |elements: usize| (elements * element_bytes(tensor)).is_multiple_of(16);
        let rows_are_aligned = tensor.num_rows() <= 1 || is_whole(tensor.row_stride());
        address(tensor).is_multiple_of(16) && rows_are_aligned && is_whole(tensor.num_columns())
    })
}

/// Bytes of an element.
pub(crate) fn element_bytes(tensor: &Tensor) -> usize {
    tensor.dtype().block_bytes()
}

/// A launch of one thread for each of `num_items`.
pub(crate) fn one_thread_each(num_items: usize) -> Grid {
    // The kernels count items in 32 bits; so many elements do not fit any device.
    let blocks = num_items.div_ceil(THREADS as usize);
    assert!(blocks <= (u32::MAX / THREADS) as usize, "{num_items} items are more than a launch counts");
    Grid { blocks: [blocks as u32, 1, 1], threads: THREADS, shared_bytes: 0, overlaps: true }
}

/// A count as kernels take it.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).expect("no dimension of a tensor exceeds 32 bits")
}

/// A stride as kernels take it.
pub(crate) fn stride(tensor: &Tensor) -> i64 {
    tensor.row_stride() as i64
}

/// The ending of the names of kernels for an activation dtype.
pub(crate) fn suffix(activation: DType) -> &'static str {
    match activation {
        DType::F16 => "f16",
        _ => "bf16",
    }
}
