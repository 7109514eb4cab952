//! Root-mean-square normalization.

use quire_kernels::{Activation, AddRmsNorm, Kernels, StepCtx, Tensor, add_rms_norm};

use super::Loader;
use crate::error::Result;

/// `x / sqrt(mean(x²) + eps) * weight`, over the residual stream.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Loads `{name}.weight`, `[hidden_size]`.
    ///
    /// # Errors
    /// What is wrong with the tensor; the device is out of memory.
    pub fn load(loader: &Loader<'_>, name: &str) -> Result<Self> {
        let config = loader.config();
        let weight = loader.vector(&format!("{name}.weight"), config.hidden_size)?;
        Ok(Self { weight, eps: config.rms_norm_eps })
    }

    /// Adds `delta` to `residual` in place and gives the normalized sum, ready for linear layers.
    ///
    /// # Errors
    /// Those of the device and of the scratch.
    pub fn add_and_norm(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        delta: Option<&Tensor>,
        residual: &Tensor,
    ) -> quire_kernels::Result<Activation> {
        add_rms_norm(kernels, ctx, &AddRmsNorm { delta, residual, weight: &self.weight, eps: self.eps })
    }

    /// Writes the normalized rows of `x` to `out`, in the activation dtype.
    ///
    /// # Errors
    /// Those of the device.
    pub fn norm(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        x: &Tensor,
        out: &Tensor,
    ) -> quire_kernels::Result<()> {
        kernels.norm().rms_norm(ctx, x, &self.weight, self.eps, out)
    }

    /// Device memory of the weight.
    pub fn num_bytes(&self) -> usize {
        self.weight.span_bytes()
    }
}
