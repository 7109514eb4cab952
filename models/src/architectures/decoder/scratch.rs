//! What a forward pass takes of the step's scratch.

use quire_kernels::{ExpertShape, Kernels, Limits};

use super::DecoderSpec;
use crate::config::{ModelConfig, MoeConfig};

/// Scratch views start at multiples of this; counting it for each view keeps the plan an upper bound.
const SCRATCH_ALIGN: usize = 256;

/// The most scratch that [`CausalLm`](super::CausalLm)'s forward pass holds at once, its allocations added up scope by
/// scope.
pub(in super::super) fn scratch_bytes(
    config: &ModelConfig,
    spec: &DecoderSpec,
    kernels: &Kernels,
    limits: &Limits,
) -> usize {
    let sizes = Sizes { kernels, num_tokens: limits.max_num_batched_tokens };
    let hidden = config.hidden_size;
    let stream = sizes.residual(hidden) + sizes.plain(hidden);
    let head = sizes.residual(hidden) + sizes.plain(hidden) + sizes.prepared(hidden);
    let is_dense = |layer| config.moe_of(layer).is_none();
    let dense = if (0..config.num_layers).any(is_dense) { sizes.mlp(config.intermediate_size) } else { 0 };
    let sparse = config.moe.as_ref().map_or(0, |moe| sizes.sparse_mlp(hidden, moe));
    let mlp = sizes.activation(hidden) + dense.max(sparse);
    // The rows that become logits outlive the layers.
    sizes.plain(hidden) + stream + sizes.attention(config, spec).max(mlp).max(head)
}

struct Sizes<'a> {
    kernels: &'a Kernels,
    num_tokens: usize,
}

impl Sizes<'_> {
    fn residual(&self, columns: usize) -> usize {
        self.num_tokens * columns * self.kernels.device().info().residual_dtype.block_bytes() + SCRATCH_ALIGN
    }

    fn plain(&self, columns: usize) -> usize {
        self.num_tokens * columns * self.kernels.device().info().activation_dtype.block_bytes()
            + SCRATCH_ALIGN
    }

    /// Numbers of 32 bits.
    fn wide(&self, columns: usize) -> usize {
        4 * self.num_tokens * columns + SCRATCH_ALIGN
    }

    fn prepared(&self, columns: usize) -> usize {
        self.kernels.linear().activation_bytes(self.num_tokens, columns) + SCRATCH_ALIGN
    }

    fn activation(&self, columns: usize) -> usize {
        self.plain(columns) + self.prepared(columns)
    }

    fn attention(&self, config: &ModelConfig, spec: &DecoderSpec) -> usize {
        let (q_size, kv_size) = (config.q_size(), config.kv_size());
        // Apart, there are three tensors instead of one.
        let gaps = spec.qk_norm.map_or(0, |_| 2 * SCRATCH_ALIGN);
        let qkv = self.plain(q_size + 2 * kv_size) + gaps;
        self.activation(config.hidden_size) + qkv + self.activation(q_size)
    }

    /// A gated MLP, without its input.
    fn mlp(&self, intermediate_size: usize) -> usize {
        self.plain(2 * intermediate_size) + self.activation(intermediate_size)
    }

    /// A mixture of experts, without its input.
    fn sparse_mlp(&self, hidden_size: usize, moe: &MoeConfig) -> usize {
        let shape = ExpertShape {
            hidden_size,
            intermediate_size: moe.intermediate_size,
            num_experts: moe.num_experts,
            top_k: moe.top_k,
        };
        let routes = self.wide(moe.num_experts) + 2 * self.wide(moe.top_k);
        let experts = self.kernels.moe().map_or(0, |part| part.experts_bytes(&shape, self.num_tokens));
        let shared = moe.shared_intermediate_size.map_or(0, |intermediate_size| {
            self.plain(hidden_size) + self.wide(1) + self.mlp(intermediate_size)
        });
        routes + experts.max(shared)
    }
}
