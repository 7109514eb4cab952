//! The parts that a backend is made of: one trait a family of operations.
//!
//! What holds for every method that takes a [`StepCtx`](crate::StepCtx):
//!
//! - it enqueues and returns; the outputs are there when the queue has got that far;
//! - launch shapes depend on tensor shapes only; what changes from step to step is read from device memory;
//! - it allocates nothing but scratch from the context, and reads nothing back;
//! - shapes, dtypes and devices were checked by the caller; a part panics, with the invariant in words, where
//!   memory safety hangs on them, and otherwise reports only what its caller could not foresee;
//! - outputs do not overlap inputs unless the method says that it works in place;
//! - a row's result does not depend on the other rows of the call, except in a backend that documents it.

mod activation;
mod attention;
mod comm;
mod fused;
mod linear;
mod moe;
mod norm;
mod rope;
mod sampling;
mod table;

pub use activation::*;
pub use attention::*;
pub use comm::*;
pub use fused::*;
pub(crate) use fused::{add_rms_norm_into, silu_mul_into};
pub use linear::*;
pub use moe::*;
pub use norm::*;
pub use rope::*;
pub use sampling::*;
pub use table::*;

use crate::{DeviceId, Limits};

/// What all parts have in common.
pub trait Part: Send + Sync {
    /// The device whose tensors the part takes.
    fn device(&self) -> DeviceId;

    /// Scratch that the part itself takes from the context, at most, in a step within `limits` (beside the
    /// tensors that the model allocates for its activations). Summed over the parts before loading.
    fn scratch_bytes(&self, limits: &Limits) -> usize {
        let _ = limits;
        0
    }

    /// Which kernel serves which operation, and why; logged once at start.
    fn dispatch(&self) -> Vec<Dispatch>;
}

/// One line of the dispatch table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dispatch {
    /// The operation, e.g. `attention` or `linear.q4_1`.
    pub op: String,
    /// The chosen kernel, with the ids of its algorithms where a library picks among several.
    pub kernel: String,
    /// Why this one; a fallback says that it is one.
    pub reason: String,
}

impl Dispatch {
    /// A line of the table.
    pub fn new(op: impl Into<String>, kernel: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { op: op.into(), kernel: kernel.into(), reason: reason.into() }
    }
}
