//! Tiny models, written to disk in the real formats: for tests here and in the crates above.
//!
//! ```
//! use quire_models::{Checkpoint, LoadOptions, testing::TinyModel};
//!
//! let folder = tempfile::tempdir()?;
//! TinyModel::llama().write_folder(folder.path())?;
//! let checkpoint = Checkpoint::open(folder.path(), &LoadOptions::default())?;
//! assert_eq!(checkpoint.config().architecture, "LlamaForCausalLM");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod folder;
mod gguf_writer;
mod golden;
mod tokenizer;

use quire_kernels::{DType, quant};
use serde_json::{Map, Value, json};

use crate::architectures::{DecoderSpec, decoder_layers};
use crate::checkpoint::TensorSpec;
use crate::config::ModelConfig;
use crate::random::{hash_name, mix};

pub use folder::write_safetensors;
pub use gguf_writer::{GgufWriter, MetadataValue};
pub use golden::{GoldenModel, GoldenTensor};
pub use tokenizer::TinyTokenizer;

/// A model of a few thousand random weights with a byte-level tokenizer. The same options give the same
/// weights, in a folder and in a GGUF file alike.
#[derive(Debug, Clone)]
pub struct TinyModel {
    /// `LlamaForCausalLM` or `Qwen2ForCausalLM`.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the embedding; at least the tokenizer's tokens.
    pub vocab_size: usize,
    /// The longest context.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// What matrices are stored in: a float, or for GGUF files also a quantized dtype.
    pub dtype: DType,
    /// Files the weights of a folder are split into.
    pub num_shards: usize,
    /// Seed of the weights.
    pub seed: u64,
    /// Fields of `config.json` to set or (with `null`) to take away.
    pub config: Map<String, Value>,
}

/// A tensor of a tiny model, in its stored form.
pub(crate) struct TinyTensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl TinyModel {
    /// A Llama with a tied head.
    pub fn llama() -> Self {
        Self {
            architecture: "LlamaForCausalLM",
            hidden_size: 64,
            intermediate_size: 128,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 16,
            vocab_size: 288,
            max_position_embeddings: 512,
            tied: true,
            dtype: DType::F32,
            num_shards: 1,
            seed: 0,
            config: Map::new(),
        }
    }

    /// A Qwen2 with a head of its own.
    pub fn qwen2() -> Self {
        Self { architecture: "Qwen2ForCausalLM", tied: false, ..Self::llama() }
    }

    /// Sets a field of `config.json`, whatever it means.
    pub fn with_config(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.config.insert(field.to_owned(), value.into());
        self
    }

    /// The object of its `config.json`.
    pub fn config_json(&self) -> Map<String, Value> {
        let is_llama = self.architecture == "LlamaForCausalLM";
        let value = json!({
            "architectures": [self.architecture],
            "bos_token_id": TinyTokenizer::BOS,
            "eos_token_id": TinyTokenizer::EOS,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": if is_llama { "llama" } else { "qwen2" },
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocab_size,
        });
        let Value::Object(mut config) = value else { unreachable!("an object was written above") };
        config.extend(self.config.clone());
        config
    }

    /// Its tensors under Hugging Face's names.
    pub(crate) fn tensors(&self) -> Vec<TinyTensor> {
        // The shapes are those of the options: the fields set on top may be wrong on purpose.
        let plain = Self { config: Map::new(), ..self.clone() };
        let config = ModelConfig::from_json(&plain.config_json()).expect("the options describe a model");
        let mut specs = vec![
            TensorSpec::new("model.embed_tokens.weight", &[self.vocab_size, self.hidden_size]),
            TensorSpec::new("model.norm.weight", &[self.hidden_size]),
        ];
        if !self.tied {
            specs.push(TensorSpec::new("lm_head.weight", &[self.vocab_size, self.hidden_size]));
        }
        specs.extend(decoder_layers(&config, &DecoderSpec::default()));
        specs.into_iter().map(|spec| self.tensor(spec)).collect()
    }

    /// Values for which activations keep their size from layer to layer, rounded to the stored dtype.
    fn tensor(&self, spec: TensorSpec) -> TinyTensor {
        let seed = mix(self.seed) ^ hash_name(&spec.name);
        let is_matrix = spec.shape.len() == 2;
        let spread = match spec.shape[..] {
            [_, columns] => (6.0 / columns as f32).sqrt(),
            _ => 0.25,
        };
        let center = if spec.name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let uniform = |at: usize| (mix(seed ^ at as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let values: Vec<f32> =
            (0..spec.shape.iter().product()).map(|at| center + spread * uniform(at)).collect();
        let dtype = if is_matrix { self.dtype } else { DType::F32 };
        let values = quant::decode(dtype, &quant::encode(dtype, &values));
        TinyTensor { name: spec.name, dtype, shape: spec.shape, values }
    }
}
