//! What a packed layer holds: runs of rows in one form of storage.

use quire_kernels::Tensor;

use super::format::Format;
use crate::memory::address;

/// The columns of dense weights and of all inputs are filled up with zeros to a multiple of this: a line of 128 bytes, and
/// the width of a record.
pub(super) const COLUMN_ALIGN: usize = 64;

/// How weights lie in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Rows of the activation dtype.
    Dense,
    /// Records of quantized blocks.
    Records(Format),
}

/// Rows that one kernel call multiplies.
pub(super) struct Segment {
    pub(super) storage: Storage,
    /// U8: the rows or records.
    pub(super) memory: Tensor,
    pub(super) rows: usize,
    /// Columns of the weight, without those that it is filled up with.
    pub(super) columns: usize,
    pub(super) bias: Option<Bias>,
}

/// `[rows]`, added to the output.
pub(super) struct Bias {
    /// F32.
    pub(super) exact: Tensor,
    /// In the activation dtype, where that holds every value exactly: cuBLASLt adds it in its epilogue.
    pub(super) narrow: Option<Tensor>,
}

/// A dense weight where it lies: a segment's, or rows that were dequantized into scratch.
#[derive(Clone, Copy)]
pub(super) struct DenseRows {
    pub(super) address: u64,
    pub(super) rows: usize,
    /// Filled up to a multiple of [`COLUMN_ALIGN`]; also the stride.
    pub(super) columns: usize,
}

impl DenseRows {
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }
}

impl Segment {
    /// Columns with those that rows are filled up with.
    pub(super) fn padded_columns(&self) -> usize {
        self.columns.next_multiple_of(COLUMN_ALIGN)
    }

    /// The rows of dense storage.
    pub(super) fn dense_rows(&self) -> DenseRows {
        DenseRows { address: address(&self.memory), rows: self.rows, columns: self.padded_columns() }
    }

    pub(super) fn num_bytes(&self) -> usize {
        let bias = self
            .bias
            .as_ref()
            .map_or(0, |bias| bias.exact.span_bytes() + bias.narrow.as_ref().map_or(0, Tensor::span_bytes));
        self.memory.span_bytes() + bias
    }
}
