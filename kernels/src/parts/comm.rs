use super::Part;
use crate::{Result, StepCtx, Tensor};

/// Collectives over the ranks of a tensor-parallel group, queued with the step.
pub trait CommKernels: Part {
    /// This rank's number.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Replaces `x` on every rank by the sum over all ranks.
    ///
    /// # Errors
    ///
    /// Those of the device, and an aborted collective.
    fn all_reduce(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<()>;

    /// `out[rank]` = that rank's `x`; `out` is `[world_size, ..x]`.
    ///
    /// # Errors
    ///
    /// Those of the device, and an aborted collective.
    fn all_gather(&self, ctx: &mut StepCtx, x: &Tensor, out: &Tensor) -> Result<()>;
}
