//! The decoder that all architectures here are made of: embedding, layers, norm, head.
//!
//! What one has that another has not is data: [`DecoderSpec`] says where norms stand and what tensors are called, the
//! [`ModelConfig`](crate::ModelConfig) gives sizes, windows, scales and caps.
//!
//! ```text
//! x = scale · embedding
//! for each layer    x += scale · after(attention(before(x)));  x += scale · after(mlp(before(x)))
//! logits = soft_cap(head(norm(x)))
//! ```

mod layer;
mod scratch;
mod spec;
mod tensors;

use std::collections::BTreeMap;
use std::sync::Arc;

use quire_kernels::{
    ActivationOp, DType, EmbeddingTable, Kernels, Linear, Result as KernelResult, StepCtx, Tensor,
};

use super::{AttentionInput, LinearModule, Loader, Model, ModelInput, RmsNorm, RopeTables};
use crate::checkpoint::OutputHead;
use crate::config::ModelConfig;
use crate::error::Result;

pub use layer::DecoderLayer;
pub(super) use layer::Stream;
pub(super) use scratch::scratch_bytes;
pub use spec::{BlockNorms, DecoderSpec, ExpertNames, QkNorm, Storage};
pub(crate) use tensors::decoder_layers;
pub use tensors::decoder_tensors;

const EMBEDDING: &str = "model.embed_tokens";

/// A decoder with a language model's head.
pub struct CausalLm {
    kernels: Kernels,
    embed_tokens: Box<dyn EmbeddingTable>,
    /// Whether the head is the embedding, and counts once.
    is_tied: bool,
    embedding_scale: f32,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    lm_head: Arc<dyn Linear>,
    logits_soft_cap: Option<f32>,
    hidden_size: usize,
    ropes: RopeTables,
}

impl CausalLm {
    /// Loads every tensor of [`decoder_tensors`].
    ///
    /// # Errors
    /// What is wrong with the checkpoint; what the backend cannot do.
    pub fn load(loader: &Loader<'_>, spec: &DecoderSpec) -> Result<Self> {
        let config = loader.config();
        let kernels = loader.kernels();
        check_kernels(config, spec, kernels)?;
        let ropes = RopeTables::new(kernels, config, loader.max_model_len())?;
        let (rows, columns) = (config.vocab_size, config.hidden_size);
        let is_tied = loader.checkpoint().output_head()? == OutputHead::Tied;
        let name = if is_tied { EMBEDDING } else { "lm_head" };
        let module = LinearModule { name: name.to_owned(), out_features: rows, has_bias: false };
        let lm_head: Arc<dyn Linear> = loader.linear(&module, columns)?.into();
        let embed_tokens: Box<dyn EmbeddingTable> = match is_tied {
            true => Box::new(Arc::clone(&lm_head)),
            false => loader.table(EMBEDDING, rows, columns)?,
        };
        let layers = (0..config.num_layers).map(|layer| DecoderLayer::load(loader, spec, layer, &ropes));
        Ok(Self {
            kernels: kernels.clone(),
            embed_tokens,
            is_tied,
            embedding_scale: config.embedding_scale,
            layers: layers.collect::<Result<_>>()?,
            // The head is linear: what multiplies the logits may as well multiply what it reads.
            norm: RmsNorm::load_scaled(loader, "model.norm", config.hidden_size, config.logits_scale)?,
            lm_head,
            logits_soft_cap: config.logits_soft_cap,
            hidden_size: config.hidden_size,
            ropes,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        std::iter::once(&*self.lm_head).chain(self.layers.iter().flat_map(DecoderLayer::linears))
    }

    /// The embedding, where it is not the head.
    fn own_table(&self) -> Option<&dyn EmbeddingTable> {
        (!self.is_tied).then_some(&*self.embed_tokens)
    }
}

impl Model for CausalLm {
    fn hidden_states(&self, ctx: &mut StepCtx, input: &ModelInput<'_>, hidden: &Tensor) -> KernelResult<()> {
        let step = &input.groups.first().expect("a model has a KV group").view;
        let (dtype, residual_dtype) = (self.activation_dtype(), self.kernels.device().info().residual_dtype);
        let dims = [step.key.num_tokens, self.hidden_size];
        let stream = Stream { residual: ctx.alloc(residual_dtype, &dims)?, delta: ctx.alloc(dtype, &dims)? };

        self.embed_tokens.embed(ctx, &step.token_ids, &stream.residual)?;
        scale(&self.kernels, ctx, &stream.residual, self.embedding_scale)?;
        for (idx, layer) in self.layers.iter().enumerate() {
            let input = AttentionInput { group: &input.groups[layer.group()], kv: &input.layers[idx] };
            ctx.named(format_args!("layer {idx}"), |ctx| {
                ctx.scope(|ctx| layer.forward(&self.kernels, ctx, idx == 0, &stream, input))
            })?;
        }
        // Only the asked-for rows go on: the norm works row by row.
        let norm = self.kernels.norm();
        let (residual, delta) = (ctx.alloc(residual_dtype, hidden.dims())?, ctx.alloc(dtype, hidden.dims())?);
        norm.gather_rows(ctx, &stream.residual, &step.logits_idx, &residual)?;
        norm.gather_rows(ctx, &stream.delta, &step.logits_idx, &delta)?;
        norm.add(ctx, &delta, &residual)?;
        self.norm.norm(&self.kernels, ctx, &residual, hidden)
    }

    fn logits(&self, ctx: &mut StepCtx, hidden: &Tensor, logits: &Tensor) -> KernelResult<()> {
        let hidden = self.kernels.linear().activation(ctx, hidden)?;
        self.lm_head.forward(ctx, &hidden, logits)?;
        match self.logits_soft_cap {
            Some(cap) => self.kernels.activation().soft_cap(ctx, logits, cap),
            None => Ok(()),
        }
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn activation_dtype(&self) -> DType {
        self.kernels.device().info().activation_dtype
    }

    fn vocab_size(&self) -> usize {
        self.lm_head.out_features()
    }

    fn num_bytes(&self) -> usize {
        let norms = self.layers.iter().map(DecoderLayer::norm_bytes).sum::<usize>() + self.norm.num_bytes();
        let experts: usize =
            self.layers.iter().filter_map(DecoderLayer::experts).map(|experts| experts.num_bytes()).sum();
        let table = self.own_table().map_or(0, EmbeddingTable::num_bytes);
        let linears: usize = self.linears().map(Linear::num_bytes).sum();
        table + linears + experts + norms + self.ropes.num_bytes()
    }

    fn kernels(&self) -> Vec<(String, usize)> {
        let mut counts = BTreeMap::new();
        let experts = self.layers.iter().filter_map(DecoderLayer::experts).map(|experts| experts.kernel());
        let table = self.own_table().map(EmbeddingTable::kernel);
        let names = self.linears().map(Linear::kernel).chain(experts).chain(table);
        names.for_each(|name| *counts.entry(name).or_default() += 1);
        counts.into_iter().collect()
    }
}

/// Multiplies `x` in place; a factor of 1 is free.
pub(super) fn scale(kernels: &Kernels, ctx: &mut StepCtx, x: &Tensor, factor: f32) -> KernelResult<()> {
    if factor == 1.0 { Ok(()) } else { kernels.activation().scale(ctx, x, factor) }
}

/// Refuses a model that the backend has no kernels for, before any of its weights is read.
pub(super) fn check_kernels(config: &ModelConfig, spec: &DecoderSpec, kernels: &Kernels) -> Result<()> {
    let activation = kernels.activation();
    let needed = [
        config.gate()?.op(),
        (config.embedding_scale != 1.0 || config.residual_scale != 1.0).then_some(ActivationOp::Scale),
        config.logits_soft_cap.map(|_| ActivationOp::SoftCap),
    ];
    needed.into_iter().flatten().try_for_each(|op| activation.require(op))?;
    let info = kernels.device().info();
    let unsupported = |part, what: &str| {
        let what = what.to_owned();
        Err(quire_kernels::Error::Unsupported { backend: info.backend.clone(), part, what }.into())
    };
    if config.attention_soft_cap.is_some() && !kernels.attention().supports_soft_cap() {
        return unsupported("attention", "scores with a soft cap");
    }
    if config.moe.is_some() {
        kernels.moe()?;
    }
    let reads_stream = spec.attention_norms.before.is_none() || spec.mlp_norms.before.is_none();
    if reads_stream && info.residual_dtype != info.activation_dtype {
        return unsupported("norm", "blocks that read the residual stream without a norm");
    }
    Ok(())
}
