use super::Part;
use crate::{Result, StepCtx, Tensor};

/// Root-mean-square normalization: `y = x / sqrt(mean(x²) + eps) · w` (Zhang and Sennrich, 2019).
pub trait NormKernels: Part {
    /// `x` is `[rows, columns]` in the activation dtype or that of the residual stream (`rows` may be
    /// `num_tokens * num_heads`), `out` the same in the activation dtype, `weight` `[columns]` F32. `out` may be `x`
    /// where their dtypes are one.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn rms_norm(&self, ctx: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()>;

    /// `residual += x`, elementwise, in place; both `[rows, columns]`, `x` in the activation dtype, `residual` in that
    /// of the residual stream.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn add(&self, ctx: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()>;

    /// `out[i] = x[idx[i]]`: whole rows, e.g. the hidden states that become logits. `idx` is `[n]` I32, `x`
    /// `[rows, columns]`, `out` `[n, columns]` of the same dtype.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn gather_rows(&self, ctx: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()>;
}
