//! What a model is: its sizes, before any weight is read.

mod dialect;
mod error;
mod faults;
mod fields;
mod generation;
mod gguf;
mod hf;
mod moe;
mod quantization;
mod rope;
mod window;

use quire_kernels::{DType, Gate};

use crate::error::Error;

use dialect::Dialect;
use faults::Faults;

pub use error::ConfigError;
pub use generation::GenerationConfig;
pub(crate) use gguf::ROPE_TENSORS;
pub use moe::MoeConfig;
pub use quantization::Quantization;
pub use rope::{RopeConfig, RopeScaling};
pub use window::SlidingWindow;

/// The largest size or count taken seriously; products of two still fit into 64 bits.
const MAX_SIZE: usize = u32::MAX as usize;
const MAX_LAYERS: usize = 1 << 16;
/// In place of sizes that cannot be read, so that the rest can be: nothing that they must fit is wrong because of them.
const STAND_IN_SIZE: usize = 128;
/// Nobody has trained for a context of so many tokens: a larger number is what is left of another one.
const MAX_CONTEXT: usize = 1 << 28;

/// The shape of a decoder, from `config.json` or from a GGUF file's metadata, validated.
///
/// Names are those of `config.json`, shortened where the field's own word is long.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The architecture's registered name, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the embedding, which may be more than the tokenizer has tokens.
    pub vocab_size: usize,
    /// The longest context the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Added under the root of every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// That of layers with a window, where they have their own.
    pub local_rope: Option<RopeConfig>,
    /// Multiplies the scores of attention.
    pub attention_scale: f32,
    /// Soft cap of the scores of attention.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of the logits.
    pub logits_soft_cap: Option<f32>,
    /// Multiplies embeddings.
    pub embedding_scale: f32,
    /// Multiplies what each block adds to the residual stream.
    pub residual_scale: f32,
    /// Multiplies the logits.
    pub logits_scale: f32,
    /// Added to the weights of norms before they multiply.
    pub norm_offset: f32,
    /// Layers whose MLP is a mixture of experts.
    pub moe: Option<MoeConfig>,
    /// Activation of the MLP, such as `silu`.
    pub hidden_act: String,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the projection after attention has a bias.
    pub output_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Layers that see a window of the context only.
    pub sliding_window: Option<SlidingWindow>,
    /// Put in front of a text, by tokenizers that do so.
    pub bos_token_id: Option<u32>,
    /// Ids that end a text, as the model's own configuration lists them.
    pub eos_token_ids: Vec<u32>,
    /// What the weights were saved in, where that is one dtype.
    pub dtype: Option<DType>,
    /// The whole `config.json`, for fields that only one architecture knows; empty for a GGUF file.
    pub raw: serde_json::Map<String, serde_json::Value>,
}

impl ModelConfig {
    /// The architecture whose `model_type` this is.
    pub(crate) fn architecture_of_type(model_type: &str) -> Option<&'static str> {
        Dialect::of_model_type(model_type).map(|dialect| dialect.architecture)
    }

    /// Whether an architecture is one that this crate knows the ways of.
    pub(crate) fn is_known_architecture(name: &str) -> bool {
        Dialect::of(name).architecture == name
    }

    /// The longest context that the model is made for, in tokens: more than `max_position_embeddings` where its rotary
    /// positions are stretched beyond.
    pub fn max_context(&self) -> usize {
        let stretched = match self.rope.scaling {
            RopeScaling::Dynamic { factor, original_max_position }
            | RopeScaling::Yarn { factor, original_max_position, .. } => {
                (factor * original_max_position as f64) as usize
            }
            _ => 0,
        };
        self.max_position_embeddings.max(stretched.min(MAX_SIZE))
    }

    /// The window of one layer; `None` where it sees everything.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let window = self.sliding_window.as_ref()?;
        window.layers.get(layer).copied().unwrap_or(false).then_some(window.num_tokens)
    }

    /// The rotary embedding of one layer.
    pub fn rope_of(&self, layer: usize) -> &RopeConfig {
        self.local_rope.as_ref().filter(|_| self.window(layer).is_some()).unwrap_or(&self.rope)
    }

    /// The experts of one layer; `None` where its MLP is an ordinary one.
    pub fn moe_of(&self, layer: usize) -> Option<&MoeConfig> {
        self.moe.as_ref().filter(|moe| moe.layers.get(layer).copied().unwrap_or(false))
    }

    /// What the gate of its MLPs goes through.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an activation that is not built.
    pub fn gate(&self) -> crate::Result<Gate> {
        match self.hidden_act.as_str() {
            "silu" | "swish" => Ok(Gate::Silu),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(Gate::GeluTanh),
            _ => Err(Error::Unsupported {
                architecture: self.architecture.clone(),
                field: "hidden_act",
                given: self.hidden_act.clone(),
                expected: "silu or gelu_pytorch_tanh",
            }),
        }
    }

    /// Columns of q: all heads side by side.
    pub fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Columns of k, and of v.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Checks what every decoder needs, so that nothing below divides by zero or overflows.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field as `config.json` does.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let faults = Faults::default();
        self.check(&str::to_owned, &faults);
        faults.first_or(())
    }

    /// As [`validate`](Self::validate), with all faults, and fields named as the file names them that `name` stands for.
    fn check(&self, name: Naming<'_>, faults: &Faults) {
        self.check_sizes(name, faults);
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            let expected = "a finite number of at least 0";
            faults.add(ConfigError::number(&name("rms_norm_eps"), expected, self.rms_norm_eps));
        }
        self.rope.check(self.head_dim, name, faults);
        if let Some(rope) = &self.local_rope {
            rope.check(self.head_dim, name, faults);
        }
        if let Some(moe) = &self.moe {
            moe.check(name, faults);
        }
        self.check_scales(name, faults);
        self.check_token_ids(name, faults);
    }

    fn check_sizes(&self, name: Naming<'_>, faults: &Faults) {
        let sizes = [
            ("hidden_size", self.hidden_size, MAX_SIZE),
            ("intermediate_size", self.intermediate_size, MAX_SIZE),
            ("num_attention_heads", self.num_heads, MAX_SIZE),
            ("num_key_value_heads", self.num_kv_heads, MAX_SIZE),
            ("head_dim", self.head_dim, MAX_SIZE),
            ("vocab_size", self.vocab_size, MAX_SIZE),
            ("max_position_embeddings", self.max_position_embeddings, MAX_CONTEXT),
            ("num_hidden_layers", self.num_layers, MAX_LAYERS),
        ];
        for (field, given, max) in sizes {
            faults.take(in_range(name(field), given, max));
        }
        if self.max_position_embeddings == 1 {
            let expected = "at least 2, a token of prompt and one of output";
            faults.add(ConfigError::number(&name("max_position_embeddings"), expected, 1));
        }
        let q_size = format!("{} * {}", name("num_attention_heads"), name("head_dim"));
        if self.num_heads > 0 && self.head_dim > 0 {
            faults.take(in_range(q_size, self.num_heads.saturating_mul(self.head_dim), MAX_SIZE));
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            faults.add(ConfigError::HeadsNotDivisible {
                field: name("num_attention_heads"),
                kv_field: name("num_key_value_heads"),
                num_heads: self.num_heads,
                num_kv_heads: self.num_kv_heads,
            });
        }
        if !self.head_dim.is_multiple_of(2) {
            faults.add(ConfigError::OddHeadDim { field: name("head_dim"), given: self.head_dim });
        }
    }

    fn check_scales(&self, name: Naming<'_>, faults: &Faults) {
        let caps = [
            ("attn_logit_softcapping", self.attention_soft_cap),
            ("final_logit_softcapping", self.logits_soft_cap),
        ];
        let caps = caps.into_iter().filter_map(|(field, cap)| Some((field, cap?)));
        let scales = [
            ("query_pre_attn_scalar or attention_multiplier", self.attention_scale),
            ("embedding_multiplier", self.embedding_scale),
            ("residual_multiplier", self.residual_scale),
            ("logits_scaling", self.logits_scale),
        ];
        for (field, given) in scales.into_iter().chain(caps) {
            if !(given.is_finite() && given > 0.0) {
                faults.add(ConfigError::number(&name(field), "a number above 0", given));
            }
        }
    }

    fn check_token_ids(&self, name: Naming<'_>, faults: &Faults) {
        let bos = self.bos_token_id.map(|id| ("bos_token_id", id));
        let eos = self.eos_token_ids.iter().map(|&id| ("eos_token_id", id));
        let vocab_size = self.vocab_size;
        for (field, given) in bos.into_iter().chain(eos).filter(|&(_, id)| id as usize >= vocab_size) {
            faults.add(ConfigError::TokenId { field: name(field), given, vocab_size });
        }
    }
}

/// From a field's name in `config.json` to that in the file at hand.
type Naming<'a> = &'a dyn Fn(&str) -> String;

fn in_range(field: String, given: usize, max: usize) -> Result<(), ConfigError> {
    if (1..=max).contains(&given) { Ok(()) } else { Err(ConfigError::Size { field, given, max }) }
}

/// The width of a head, where the file may leave it out.
fn head_dim_of(hidden_size: usize, num_heads: usize, name: Naming<'_>) -> Result<usize, ConfigError> {
    if num_heads > 0 && hidden_size.is_multiple_of(num_heads) {
        return Ok(hidden_size / num_heads);
    }
    Err(ConfigError::NoHeadDim {
        field: name("head_dim"),
        hidden_field: name("hidden_size"),
        heads_field: name("num_attention_heads"),
        hidden_size,
        num_heads,
    })
}
