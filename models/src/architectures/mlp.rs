//! The gated MLP.

use quire_kernels::{Activation, Kernels, Linear, Result as KernelResult, StepCtx, Tensor, silu_mul};

use super::{LinearModule, Loader};
use crate::error::Result;

/// `down(silu(gate(x)) * up(x))` (Shazeer, GLU Variants Improve Transformer, 2020).
pub struct Mlp {
    gate_up_proj: Box<dyn Linear>,
    down_proj: Box<dyn Linear>,
}

impl Mlp {
    /// Loads `{name}.gate_proj`, `up_proj` (merged) and `down_proj`.
    ///
    /// # Errors
    /// What is wrong with a tensor; what the backend cannot pack.
    pub fn load(loader: &Loader<'_>, name: &str) -> Result<Self> {
        let config = loader.config();
        let module = |part: &str, out_features| LinearModule {
            name: format!("{name}.{part}_proj"),
            out_features,
            has_bias: config.mlp_bias,
        };
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let gate_up = [module("gate", intermediate), module("up", intermediate)];
        Ok(Self {
            gate_up_proj: loader.merged(&gate_up, hidden)?,
            down_proj: loader.linear(&module("down", hidden), intermediate)?,
        })
    }

    /// Writes the MLP of `x` to `out`, `[num_tokens, hidden_size]`.
    ///
    /// # Errors
    /// Those of the device and of the scratch.
    pub fn forward(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        x: &Activation,
        out: &Tensor,
    ) -> KernelResult<()> {
        let num_tokens = x.x.num_rows();
        let gate_up = ctx.alloc(x.x.dtype(), &[num_tokens, self.gate_up_proj.out_features()])?;
        self.gate_up_proj.forward(ctx, x, &gate_up)?;
        let gated = silu_mul(kernels, ctx, &gate_up)?;
        self.down_proj.forward(ctx, &gated, out)
    }

    /// The linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        [&*self.gate_up_proj, &*self.down_proj].into_iter()
    }
}
