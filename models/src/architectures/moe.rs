//! An MLP that is a mixture of experts.

use quire_kernels::{
    Activation, DType, Experts, Kernels, Linear, Result as KernelResult, RouteWeights, Routes, StepCtx,
    Tensor,
};

use super::{DecoderSpec, LinearModule, Loader, Mlp, MlpModules};
use crate::config::{ModelConfig, MoeConfig};
use crate::error::Result;

/// Each token goes through the few gated MLPs that a router picks (Shazeer et al., 2017), and through one that all share
/// where there is such a one, weighted by a gate of its own (Qwen1.5-MoE, 2024).
pub struct SparseMlp {
    router: Box<dyn Linear>,
    experts: Box<dyn Experts>,
    top_k: usize,
    weights: RouteWeights,
    shared: Option<SharedExpert>,
}

struct SharedExpert {
    mlp: Mlp,
    gate: Box<dyn Linear>,
}

/// The linear layers of a mixture of experts, as the checkpoint has them.
pub(super) struct SparseMlpModules {
    pub(super) router: LinearModule,
    pub(super) experts: Vec<MlpModules>,
    /// The shared expert, its gate, its width inside.
    pub(super) shared: Option<(MlpModules, LinearModule, usize)>,
}

impl SparseMlpModules {
    pub(super) fn new(config: &ModelConfig, spec: &DecoderSpec, layer: &str, moe: &MoeConfig) -> Self {
        let names = spec.experts;
        let name = format!("{layer}.{}", names.module);
        let router = |part: &str, out_features| LinearModule {
            name: format!("{name}.{part}"),
            out_features,
            has_bias: false,
        };
        let expert = |idx: usize| {
            MlpModules::named(
                &format!("{name}.experts.{idx}"),
                names.projections,
                config,
                moe.intermediate_size,
            )
        };
        let shared = moe.shared_intermediate_size.map(|intermediate_size| {
            let mlp = MlpModules::new(spec, &shared_name(&name), config, intermediate_size);
            (mlp, router("shared_expert_gate", 1), intermediate_size)
        });
        Self {
            router: router("gate", moe.num_experts),
            experts: (0..moe.num_experts).map(expert).collect(),
            shared,
        }
    }
}

fn shared_name(module: &str) -> String {
    format!("{module}.shared_expert")
}

impl SparseMlp {
    /// Loads the router, the experts and the shared expert of the layer named `layer`.
    ///
    /// # Errors
    /// What is wrong with a tensor; what the backend cannot pack.
    pub fn load(loader: &Loader<'_>, spec: &DecoderSpec, layer: &str, moe: &MoeConfig) -> Result<Self> {
        let config = loader.config();
        let hidden_size = config.hidden_size;
        let modules = SparseMlpModules::new(config, spec, layer, moe);
        let name = format!("{layer}.{}", spec.experts.module);
        let shared = modules.shared.map(|(_, gate, intermediate_size)| {
            Ok::<_, crate::Error>(SharedExpert {
                mlp: Mlp::load(loader, spec, &shared_name(&name), intermediate_size)?,
                gate: loader.linear(&gate, hidden_size)?,
            })
        });
        Ok(Self {
            router: loader.linear(&modules.router, hidden_size)?,
            experts: loader.experts(&modules.experts, hidden_size, moe.intermediate_size, config.gate()?)?,
            top_k: moe.top_k,
            weights: moe.weights,
            shared: shared.transpose()?,
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
        let (moe, num_tokens) = (kernels.moe()?, x.x.num_rows());
        let logits = ctx.alloc(DType::F32, &[num_tokens, self.router.out_features()])?;
        self.router.forward(ctx, x, &logits)?;
        let routes = Routes {
            experts: ctx.alloc(DType::I32, &[num_tokens, self.top_k])?,
            weights: ctx.alloc(DType::F32, &[num_tokens, self.top_k])?,
        };
        moe.route(ctx, &logits, self.weights, &routes)?;
        ctx.scope(|ctx| self.experts.forward(ctx, x, &routes, out))?;
        let Some(SharedExpert { mlp, gate }) = &self.shared else { return Ok(()) };
        let gates = ctx.alloc(DType::F32, &[num_tokens, 1])?;
        gate.forward(ctx, x, &gates)?;
        let shared = ctx.alloc(out.dtype(), out.dims())?;
        ctx.scope(|ctx| mlp.forward(kernels, ctx, x, &shared))?;
        moe.add_gated(ctx, &gates, &shared, out)
    }

    /// The linear layers beside the experts.
    pub fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        let shared = self.shared.iter().flat_map(|shared| shared.mlp.linears().chain([&*shared.gate]));
        std::iter::once(&*self.router).chain(shared)
    }

    /// The experts.
    pub fn experts(&self) -> &dyn Experts {
        self.experts.as_ref()
    }
}
