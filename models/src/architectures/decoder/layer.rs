//! One layer of a decoder.

use quire_kernels::{Activation, DType, Experts, Kernels, Linear, Result as KernelResult, StepCtx, Tensor};

use super::super::{Attention, AttentionInput, Loader, Mlp, RmsNorm, RopeTables, SparseMlp, kv_groups};
use super::{BlockNorms, DecoderSpec, scale};
use crate::error::Result;

/// Attention, then an MLP, each with norms around it and added to the residual stream.
pub struct DecoderLayer {
    attention_norms: Norms,
    self_attn: Attention,
    mlp_norms: Norms,
    mlp: FeedForward,
    residual_scale: f32,
    /// Which KV group it belongs to.
    group: usize,
}

/// The two tensors that live through all layers.
pub(in super::super) struct Stream {
    /// `[num_tokens, hidden_size]` in the dtype of the residual stream.
    pub(super) residual: Tensor,
    /// What the last block gave and the next norm adds to the residual.
    pub(super) delta: Tensor,
}

/// See [`BlockNorms`].
struct Norms {
    before: Option<RmsNorm>,
    after: Option<RmsNorm>,
}

enum FeedForward {
    Dense(Mlp),
    Sparse(SparseMlp),
}

impl DecoderLayer {
    /// Loads layer number `layer`.
    ///
    /// # Errors
    /// As [`CausalLm::load`](super::CausalLm::load).
    pub fn load(loader: &Loader<'_>, spec: &DecoderSpec, layer: usize, ropes: &RopeTables) -> Result<Self> {
        let config = loader.config();
        let name = format!("model.layers.{layer}");
        let groups = kv_groups(config, DType::F32);
        let group = groups.iter().position(|group| group.layers.contains(&layer));
        let mlp = match config.moe_of(layer) {
            Some(moe) => FeedForward::Sparse(SparseMlp::load(loader, spec, &name, moe)?),
            None => {
                FeedForward::Dense(Mlp::load(loader, spec, &format!("{name}.mlp"), config.intermediate_size)?)
            }
        };
        Ok(Self {
            attention_norms: Norms::load(loader, &name, spec.attention_norms)?,
            self_attn: Attention::load(
                loader,
                spec,
                &format!("{name}.self_attn"),
                layer,
                ropes.of(layer, config),
            )?,
            mlp_norms: Norms::load(loader, &name, spec.mlp_norms)?,
            mlp,
            residual_scale: config.residual_scale,
            group: group.expect("every layer is in a group"),
        })
    }

    /// Which of the model's KV groups its cache belongs to.
    pub fn group(&self) -> usize {
        self.group
    }

    pub(super) fn forward(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        is_first: bool,
        stream: &Stream,
        input: AttentionInput<'_>,
    ) -> KernelResult<()> {
        ctx.named(format_args!("attention"), |ctx| self.attend(kernels, ctx, is_first, stream, input))?;
        ctx.named(format_args!("mlp"), |ctx| self.feed_forward(kernels, ctx, stream))
    }

    fn attend(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        is_first: bool,
        stream: &Stream,
        input: AttentionInput<'_>,
    ) -> KernelResult<()> {
        ctx.scope(|ctx| {
            // Before the first layer nothing is waiting to be added.
            let x = self.attention_norms.before(kernels, ctx, !is_first, stream)?;
            self.self_attn.forward(kernels, ctx, &x, input, &stream.delta)
        })?;
        self.attention_norms.after(kernels, ctx, stream)?;
        scale(kernels, ctx, &stream.delta, self.residual_scale)
    }

    fn feed_forward(&self, kernels: &Kernels, ctx: &mut StepCtx, stream: &Stream) -> KernelResult<()> {
        let x = self.mlp_norms.before(kernels, ctx, true, stream)?;
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.forward(kernels, ctx, &x, &stream.delta)?,
            FeedForward::Sparse(mlp) => mlp.forward(kernels, ctx, &x, &stream.delta)?,
        }
        self.mlp_norms.after(kernels, ctx, stream)?;
        scale(kernels, ctx, &stream.delta, self.residual_scale)
    }

    /// The linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        let mlp: Vec<&dyn Linear> = match &self.mlp {
            FeedForward::Dense(mlp) => mlp.linears().collect(),
            FeedForward::Sparse(mlp) => mlp.linears().collect(),
        };
        self.self_attn.linears().chain(mlp)
    }

    pub(super) fn experts(&self) -> Option<&dyn Experts> {
        match &self.mlp {
            FeedForward::Dense(_) => None,
            FeedForward::Sparse(mlp) => Some(mlp.experts()),
        }
    }

    pub(super) fn norm_bytes(&self) -> usize {
        let around = [&self.attention_norms, &self.mlp_norms];
        let around = around.into_iter().flat_map(|norms| norms.before.iter().chain(&norms.after));
        around.chain(self.self_attn.norms()).map(RmsNorm::num_bytes).sum()
    }
}

impl Norms {
    fn load(loader: &Loader<'_>, layer: &str, names: BlockNorms) -> Result<Self> {
        let hidden_size = loader.config().hidden_size;
        let load = |name: Option<&str>| {
            name.map(|name| RmsNorm::load(loader, &format!("{layer}.{name}"), hidden_size)).transpose()
        };
        Ok(Self { before: load(names.before)?, after: load(names.after)? })
    }

    /// Adds what is waiting to the residual stream; gives what the block reads.
    fn before(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        is_waiting: bool,
        stream: &Stream,
    ) -> KernelResult<Activation> {
        let waiting = is_waiting.then_some(&stream.delta);
        if let Some(norm) = &self.before {
            return norm.add_and_norm(kernels, ctx, waiting, &stream.residual);
        }
        if let Some(delta) = waiting {
            kernels.norm().add(ctx, delta, &stream.residual)?;
        }
        kernels.linear().activation(ctx, &stream.residual)
    }

    /// Normalizes what the block has made.
    fn after(&self, kernels: &Kernels, ctx: &mut StepCtx, stream: &Stream) -> KernelResult<()> {
        match &self.after {
            Some(norm) => norm.norm(kernels, ctx, &stream.delta, &stream.delta),
            None => Ok(()),
        }
    }
}
