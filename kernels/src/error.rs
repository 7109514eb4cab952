//! What a backend can fail at.

use crate::{DType, DeviceId};

/// Result of a kernel call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure that the caller of a kernel could not foresee, or a backend that cannot do what was asked of it.
///
/// Shapes and value ranges are checked above this seam: a wrong one is a bug of the caller and panics with the
/// invariant in words.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device has less memory than asked for.
    #[error("device {device} is out of memory: {wanted_bytes} bytes wanted, {free_bytes} free")]
    OutOfMemory {
        /// Where.
        device: String,
        /// Bytes of the refused allocation.
        wanted_bytes: usize,
        /// Bytes that were free.
        free_bytes: usize,
    },
    /// A step asked for more scratch than was planned for it.
    #[error("step scratch is exhausted: {wanted_bytes} bytes wanted, {free_bytes} of {planned_bytes} left")]
    ScratchExhausted {
        /// Bytes of the refused view.
        wanted_bytes: usize,
        /// Bytes that were left.
        free_bytes: usize,
        /// Bytes of the whole arena.
        planned_bytes: usize,
    },
    /// Something was done inside a step that only may be done outside: allocate, read back.
    #[error("{operation} inside a step: a step may be captured and replayed, so it cannot {operation}")]
    NotInStep {
        /// What was tried.
        operation: &'static str,
    },
    /// A part has no kernel for this combination.
    #[error("{part} of backend {backend} has no kernel for {what}")]
    Unsupported {
        /// The backend's name.
        backend: String,
        /// The part, e.g. `attention`.
        part: &'static str,
        /// The missing combination, e.g. `kv dtype f8_e5m2`.
        what: String,
    },
    /// A weight cannot be packed.
    #[error("weight {name}: {reason}")]
    Weight {
        /// The tensor's name in the checkpoint.
        name: String,
        /// What is wrong with it.
        reason: WeightError,
    },
    /// Parts of one [`Kernels`](crate::Kernels) belong to different devices.
    #[error("part {part} belongs to device {given}, the backend to device {expected}")]
    ForeignPart {
        /// The refused part.
        part: &'static str,
        /// The backend's device.
        expected: DeviceId,
        /// The part's device.
        given: DeviceId,
    },
    /// The device stopped working; what is queued on it is lost.
    #[error("device {device} failed: {reason}")]
    DeviceLost {
        /// Where.
        device: String,
        /// What the driver, or the panicked thread, said.
        reason: String,
    },
}

/// Why a weight cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The bytes are not what dtype and shape need.
    #[error("{dtype} of shape {shape:?} needs {expected} bytes, {given} given")]
    Size {
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        given: usize,
    },
    /// A row is no whole number of quantization blocks.
    #[error("{dtype} needs rows of whole blocks of {block_len}, a row has {columns} columns")]
    Blocks {
        /// Its dtype.
        dtype: DType,
        /// Elements a block.
        block_len: usize,
        /// Elements a row.
        columns: usize,
    },
    /// Merged weights read different inputs.
    #[error("merged weights must have the same number of columns: {expected} and {given}")]
    Columns {
        /// Columns of the first.
        expected: usize,
        /// Columns of this one.
        given: usize,
    },
    /// A number of scales, zero points or column groups that does not follow from the shape.
    #[error("{expected} scales (or zero points, or column groups) are needed, {given} given")]
    Scales {
        /// Those needed.
        expected: usize,
        /// Those given.
        given: usize,
    },
    /// Scales for blocks of nothing.
    #[error("scales for blocks of {block:?} elements, expected at least one")]
    ScaleBlock {
        /// Rows and columns of a block.
        block: [usize; 2],
    },
    /// A column in a group that has no scales.
    #[error("a column belongs to group {given}, there are {num_groups}")]
    ColumnGroup {
        /// The group.
        given: u32,
        /// The groups there are.
        num_groups: usize,
    },
    /// The dtype is no weight type of this backend.
    #[error("this backend has no linear kernel for {0}")]
    DType(DType),
}
