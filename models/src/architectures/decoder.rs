//! The pre-norm decoder that Llama made the usual one: what its descendants share.

use std::collections::BTreeMap;
use std::sync::Arc;

use quire_kernels::{DType, Kernels, Limits, Linear, Result as KernelResult, RopeTable, StepCtx, Tensor};

use super::{
    Attention, AttentionInput, LinearModule, Loader, Mlp, Model, ModelInput, RmsNorm, kv_groups, rope_table,
};
use crate::checkpoint::{Checkpoint, OutputHead, TensorSpec};
use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// Scratch views start at multiples of this; counting it for each view keeps the plan an upper bound.
const SCRATCH_ALIGN: usize = 256;

/// Embedding, layers, norm, head.
pub struct CausalLm {
    kernels: Kernels,
    embed_tokens: Arc<dyn Linear>,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    lm_head: Arc<dyn Linear>,
    hidden_size: usize,
    rope: Arc<RopeTable>,
}

/// `x += attention(norm(x)); x += mlp(norm(x))`.
pub struct DecoderLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    /// Which KV group it belongs to.
    group: usize,
}

/// The two tensors that live through all layers.
struct Stream {
    /// `[num_tokens, hidden_size]` in the dtype of the residual stream.
    residual: Tensor,
    /// What the last block gave and the next norm adds to the residual.
    delta: Tensor,
}

impl CausalLm {
    /// Loads every tensor of [`decoder_tensors`].
    ///
    /// # Errors
    /// What is wrong with the checkpoint; what the backend cannot do.
    pub fn load(loader: &Loader<'_>) -> Result<Self> {
        let config = loader.config();
        check_activation(config)?;
        let kernels = loader.kernels();
        let rope = rope_table(kernels, &config.rope, config.head_dim, loader.max_model_len())?;
        let rope = Arc::new(rope);
        let vocabulary = |name: &str| {
            let module =
                LinearModule { name: name.to_owned(), out_features: config.vocab_size, has_bias: false };
            loader.linear(&module, config.hidden_size).map(Arc::from)
        };
        let embed_tokens: Arc<dyn Linear> = vocabulary("model.embed_tokens")?;
        let lm_head = match loader.checkpoint().output_head()? {
            OutputHead::Tied => Arc::clone(&embed_tokens),
            OutputHead::Own => vocabulary("lm_head")?,
        };
        let layers = (0..config.num_layers).map(|layer| DecoderLayer::load(loader, layer, &rope));
        Ok(Self {
            kernels: kernels.clone(),
            embed_tokens,
            layers: layers.collect::<Result<_>>()?,
            norm: RmsNorm::load(loader, "model.norm")?,
            lm_head,
            hidden_size: config.hidden_size,
            rope,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        let own_head = (!Arc::ptr_eq(&self.embed_tokens, &self.lm_head)).then_some(&*self.lm_head);
        let layers =
            self.layers.iter().flat_map(|layer| layer.self_attn.linears().chain(layer.mlp.linears()));
        std::iter::once(&*self.embed_tokens).chain(own_head).chain(layers)
    }
}

impl Model for CausalLm {
    fn hidden_states(&self, ctx: &mut StepCtx, input: &ModelInput<'_>, hidden: &Tensor) -> KernelResult<()> {
        let step = &input.groups.first().expect("a model has a KV group").view;
        let (dtype, residual_dtype) = (self.activation_dtype(), self.kernels.device().info().residual_dtype);
        let dims = [step.key.num_tokens, self.hidden_size];
        let stream = Stream { residual: ctx.alloc(residual_dtype, &dims)?, delta: ctx.alloc(dtype, &dims)? };

        self.embed_tokens.embed(ctx, &step.token_ids, &stream.residual)?;
        for (idx, layer) in self.layers.iter().enumerate() {
            let input = AttentionInput { group: &input.groups[layer.group], kv: &input.layers[idx] };
            ctx.scope(|ctx| layer.forward(&self.kernels, ctx, idx == 0, &stream, input))?;
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
        self.lm_head.forward(ctx, &hidden, logits)
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
        self.linears().map(Linear::num_bytes).sum::<usize>() + norms + self.rope.cos_sin.span_bytes()
    }

    fn kernels(&self) -> Vec<(String, usize)> {
        let mut counts = BTreeMap::new();
        self.linears().for_each(|linear| *counts.entry(linear.kernel()).or_default() += 1);
        counts.into_iter().collect()
    }
}

impl DecoderLayer {
    /// Loads layer number `layer`.
    ///
    /// # Errors
    /// As [`CausalLm::load`].
    pub fn load(loader: &Loader<'_>, layer: usize, rope: &Arc<RopeTable>) -> Result<Self> {
        let name = format!("model.layers.{layer}");
        let groups = kv_groups(loader.config(), DType::F32);
        let group = groups.iter().position(|group| group.layers.contains(&layer));
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, &format!("{name}.input_layernorm"))?,
            self_attn: Attention::load(loader, &format!("{name}.self_attn"), layer, rope)?,
            post_attention_layernorm: RmsNorm::load(loader, &format!("{name}.post_attention_layernorm"))?,
            mlp: Mlp::load(loader, &format!("{name}.mlp"))?,
            group: group.expect("every layer is in a group"),
        })
    }

    fn forward(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        is_first: bool,
        stream: &Stream,
        input: AttentionInput<'_>,
    ) -> KernelResult<()> {
        let Stream { residual, delta } = stream;
        // Before the first layer nothing is waiting to be added.
        let waiting = (!is_first).then_some(delta);
        ctx.scope(|ctx| {
            let x = self.input_layernorm.add_and_norm(kernels, ctx, waiting, residual)?;
            self.self_attn.forward(kernels, ctx, &x, input, delta)
        })?;
        let x = self.post_attention_layernorm.add_and_norm(kernels, ctx, Some(delta), residual)?;
        self.mlp.forward(kernels, ctx, &x, delta)
    }

    fn norm_bytes(&self) -> usize {
        self.input_layernorm.num_bytes() + self.post_attention_layernorm.num_bytes()
    }
}

/// Every tensor of a decoder of this configuration.
///
/// # Errors
/// [`Error::Unsupported`] for a configuration that [`CausalLm::load`] refuses; as [`Checkpoint::output_head`].
pub fn decoder_tensors(checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>> {
    let config = checkpoint.config();
    check_activation(config)?;
    let mut tensors = vec![
        TensorSpec::new("model.embed_tokens.weight", &[config.vocab_size, config.hidden_size]),
        TensorSpec::new("model.norm.weight", &[config.hidden_size]),
    ];
    if checkpoint.output_head()? == OutputHead::Own {
        tensors.push(TensorSpec::new("lm_head.weight", &[config.vocab_size, config.hidden_size]));
    }
    tensors.extend(decoder_layers(config));
    Ok(tensors)
}

/// The tensors of all layers.
pub(crate) fn decoder_layers(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut tensors = Vec::new();
    (0..config.num_layers).for_each(|layer| push_layer(&mut tensors, config, layer));
    tensors
}

fn push_layer(tensors: &mut Vec<TensorSpec>, config: &ModelConfig, layer: usize) {
    let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
    let (q_size, kv_size) = (config.q_size(), config.kv_size());
    let name = |part: &str| format!("model.layers.{layer}.{part}");
    for (module, rows, columns, has_bias) in [
        ("self_attn.q_proj", q_size, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_size, config.output_bias),
        ("mlp.gate_proj", intermediate, hidden, config.mlp_bias),
        ("mlp.up_proj", intermediate, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, intermediate, config.mlp_bias),
    ] {
        tensors.push(TensorSpec::new(format!("{}.weight", name(module)), &[rows, columns]));
        if has_bias {
            tensors.push(TensorSpec::new(format!("{}.bias", name(module)), &[rows]));
        }
    }
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push(TensorSpec::new(format!("{}.weight", name(norm)), &[hidden]));
    }
}

/// The most scratch that [`CausalLm`]'s forward pass holds at once, its allocations added up scope by scope.
pub(super) fn scratch_bytes(config: &ModelConfig, kernels: &Kernels, limits: &Limits) -> usize {
    let num_tokens = limits.max_num_batched_tokens;
    let info = kernels.device().info();
    let element = info.activation_dtype.block_bytes();
    let residual = |columns: usize| num_tokens * columns * info.residual_dtype.block_bytes() + SCRATCH_ALIGN;
    let plain = |columns: usize| num_tokens * columns * element + SCRATCH_ALIGN;
    let prepared = |columns: usize| kernels.linear().activation_bytes(num_tokens, columns) + SCRATCH_ALIGN;
    let activation = |columns: usize| plain(columns) + prepared(columns);

    let (hidden, q_size) = (config.hidden_size, config.q_size());
    let stream = residual(hidden) + plain(hidden);
    let attention = activation(hidden) + plain(q_size + 2 * config.kv_size()) + activation(q_size);
    let mlp = activation(hidden) + plain(2 * config.intermediate_size) + activation(config.intermediate_size);
    let head = residual(hidden) + plain(hidden) + prepared(hidden);
    // The rows that become logits outlive the layers.
    plain(hidden) + stream + attention.max(mlp).max(head)
}

fn check_activation(config: &ModelConfig) -> Result<()> {
    if config.hidden_act == "silu" {
        return Ok(());
    }
    Err(Error::Unsupported {
        architecture: config.architecture.clone(),
        field: "hidden_act",
        given: config.hidden_act.clone(),
        expected: "silu",
    })
}
