use super::Part;
use crate::{Result, StepCtx, Tensor};

/// Gated activations.
pub trait ActivationKernels: Part {
    /// `out = silu(gate) · up` where a row of `gate_up`, `[num_tokens, 2 * features]`, holds the gate and then
    /// the up projection (Shazeer, 2020); `out` is `[num_tokens, features]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()>;
}
