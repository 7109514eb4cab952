//! Root-mean-square normalization.

use quire_kernels::{Activation, AddRmsNorm, Kernels, StepCtx, Tensor, add_rms_norm};

use super::Loader;
use crate::error::Result;

/// `x / sqrt(mean(x²) + eps) * weight`.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Loads `{name}.weight`, `[len]`.
    ///
    /// # Errors
    /// What is wrong with the tensor; the device is out of memory.
    pub fn load(loader: &Loader<'_>, name: &str, len: usize) -> Result<Self> {
        Self::load_scaled(loader, name, len, 1.0)
    }

    /// As [`load`](Self::load), for a norm whose result is multiplied by `scale`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_scaled(loader: &Loader<'_>, name: &str, len: usize, scale: f32) -> Result<Self> {
        let config = loader.config();
        let prepare = |weight: f32| (weight + config.norm_offset) * scale;
        let weight = loader.vector_with(&format!("{name}.weight"), len, prepare)?;
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
