//! Names of blocks and steps, and the orders that concern whole blocks.

use std::fmt;

/// One block of the pool: `block_size` consecutive KV slots. Slot `i` of block `b` is `b * block_size + i`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block's place in an array with one element a block.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One step of the engine: a pass of schedule, execute, commit. Steps are numbered in the order they are planned,
/// run on the device in that order, and are committed in that order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StepId(pub u64);

impl StepId {
    /// The step planned after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A copy of one whole block that the device makes before the kernels of the step it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockCopy {
    /// The block read.
    pub src: BlockId,
    /// The block written; nobody else reads or writes it in this step.
    pub dst: BlockId,
}
