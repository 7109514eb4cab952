//! The gated MLP.

use quire_kernels::{Activation, Gate, Kernels, Linear, Result as KernelResult, StepCtx, Tensor, gated_mul};

use super::{DecoderSpec, LinearModule, Loader, Storage};
use crate::config::ModelConfig;
use crate::error::Result;

/// `down(act(gate(x)) * up(x))` (Shazeer, GLU Variants Improve Transformer, 2020).
pub struct Mlp {
    gate_up_proj: Box<dyn Linear>,
    down_proj: Box<dyn Linear>,
    gate: Gate,
}

/// The linear layers of an MLP, as the checkpoint has them.
pub struct MlpModules {
    /// The gate and the other projection, or both in one.
    pub gate_up: Vec<LinearModule>,
    /// The projection back.
    pub down: LinearModule,
}

impl MlpModules {
    /// Those of an MLP named `name`.
    pub(super) fn new(
        spec: &DecoderSpec,
        name: &str,
        config: &ModelConfig,
        intermediate_size: usize,
    ) -> Self {
        match spec.gate_up {
            Storage::Apart => {
                Self::named(name, ["gate_proj", "up_proj", "down_proj"], config, intermediate_size)
            }
            Storage::Packed => Self {
                gate_up: vec![LinearModule {
                    name: format!("{name}.gate_up_proj"),
                    out_features: 2 * intermediate_size,
                    has_bias: config.mlp_bias,
                }],
                ..Self::named(name, ["gate_proj", "up_proj", "down_proj"], config, intermediate_size)
            },
        }
    }

    /// Those of an MLP whose projections have these names.
    pub(super) fn named(
        name: &str,
        [gate, up, down]: [&str; 3],
        config: &ModelConfig,
        intermediate_size: usize,
    ) -> Self {
        let module = |part: &str, out_features| LinearModule {
            name: format!("{name}.{part}"),
            out_features,
            has_bias: config.mlp_bias,
        };
        Self {
            gate_up: vec![module(gate, intermediate_size), module(up, intermediate_size)],
            down: module(down, config.hidden_size),
        }
    }
}

impl Mlp {
    /// Loads `{name}.gate_proj`, `up_proj` (merged) and `down_proj`, of this width inside.
    ///
    /// # Errors
    /// What is wrong with a tensor; what the backend cannot pack.
    pub fn load(
        loader: &Loader<'_>,
        spec: &DecoderSpec,
        name: &str,
        intermediate_size: usize,
    ) -> Result<Self> {
        let config = loader.config();
        let modules = MlpModules::new(spec, name, config, intermediate_size);
        Ok(Self {
            gate_up_proj: loader.merged(&modules.gate_up, config.hidden_size)?,
            down_proj: loader.linear(&modules.down, intermediate_size)?,
            gate: config.gate()?,
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
        let gated = gated_mul(kernels, ctx, self.gate, &gate_up)?;
        self.down_proj.forward(ctx, &gated, out)
    }

    /// The linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        [&*self.gate_up_proj, &*self.down_proj].into_iter()
    }
}
