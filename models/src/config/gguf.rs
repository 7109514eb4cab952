//! The configuration in a GGUF file's metadata.

use super::{ConfigError, ModelConfig, RopeConfig, RopeScaling, head_dim_of};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, GgufError};

/// As many rows as the vocabulary has tokens.
const EMBEDDING: &str = "token_embd.weight";

/// GGUF's names of architectures, and ours.
const ARCHITECTURES: [(&str, &str); 2] = [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM")];

impl ModelConfig {
    /// Reads and validates the configuration of `file`.
    ///
    /// # Errors
    /// [`Error::Gguf`] or [`Error::Config`], naming the key.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        let refuse = |source| Error::Config { path: file.path().to_owned(), source };
        let keys = Keys::new(file)?;
        keys.check_single_file()?.map_err(refuse)?;
        let architecture = keys.architecture().map_err(refuse)?;
        let hidden_size = keys.size("embedding_length")?;
        let num_heads = keys.size("attention.head_count")?;
        let head_dim = match keys.find_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => head_dim_of(hidden_size, num_heads, &|field| keys.name(field)).map_err(refuse)?,
        };
        keys.check_rotary_dimensions(head_dim)?.map_err(refuse)?;
        let eos = keys.token_id("eos")?.into_iter().chain(keys.token_id("eot")?);
        let mut config = Self {
            architecture,
            hidden_size,
            intermediate_size: keys.size("feed_forward_length")?,
            num_layers: keys.size("block_count")?,
            num_heads,
            num_kv_heads: keys.find_size("attention.head_count_kv")?.unwrap_or(num_heads),
            head_dim,
            vocab_size: keys.vocab_size()?,
            max_position_embeddings: keys.size("context_length")?,
            rms_norm_eps: keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
            rope: keys.rope()?.map_err(refuse)?,
            hidden_act: "silu".to_owned(),
            tie_word_embeddings: file.tensor("output.weight").is_none(),
            qkv_bias: file.tensor("blk.0.attn_q.bias").is_some(),
            output_bias: file.tensor("blk.0.attn_output.bias").is_some(),
            mlp_bias: file.tensor("blk.0.ffn_up.bias").is_some(),
            sliding_window: None,
            bos_token_id: keys.token_id("bos")?,
            eos_token_ids: eos.collect(),
            dtype: None,
            raw: serde_json::Map::new(),
        };
        config.eos_token_ids.dedup();
        config.validate_as(&|field| keys.name(field)).map_err(refuse)?;
        Ok(config)
    }
}

/// Fields of `config.json`, and the keys of an architecture that hold the same.
const KEYS: [(&str, &str); 10] = [
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_scaling.factor", "rope.scaling.factor"),
];

/// The keys of one architecture.
struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    fn new(file: &'a Gguf) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let prefix = file.metadata().string(KEY).map_err(|source| file.error(source))?;
        prefix.map(|prefix| Self { file, prefix }).ok_or_else(|| missing(file, KEY.to_owned()))
    }

    fn architecture(&self) -> Result<String, ConfigError> {
        let found = ARCHITECTURES.iter().find(|(theirs, _)| *theirs == self.prefix);
        found.map(|(_, ours)| (*ours).to_owned()).ok_or_else(|| ConfigError::GgufArchitecture {
            given: self.prefix.to_owned(),
            known: ARCHITECTURES.map(|(theirs, _)| theirs).join(", "),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// What the file calls a field of `config.json`.
    fn name(&self, field: &str) -> String {
        match KEYS.iter().find(|(theirs, _)| *theirs == field) {
            Some((_, key)) => self.key(key),
            None => match field {
                "vocab_size" => format!("rows of {EMBEDDING}"),
                "bos_token_id" | "eos_token_id" => format!("tokenizer.ggml.{field}"),
                _ => field.to_owned(),
            },
        }
    }

    fn find_size(&self, name: &str) -> Result<Option<usize>> {
        let found =
            self.file.metadata().unsigned(&self.key(name)).map_err(|source| self.file.error(source))?;
        Ok(found.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.find_size(name)?.ok_or_else(|| missing(self.file, self.key(name)))
    }

    fn float(&self, name: &str) -> Result<Option<f64>> {
        self.file.metadata().float(&self.key(name)).map_err(|source| self.file.error(source))
    }

    fn token_id(&self, which: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{which}_token_id");
        let found = self.file.metadata().unsigned(&key).map_err(|source| self.file.error(source))?;
        Ok(found.and_then(|id| u32::try_from(id).ok()))
    }

    fn vocab_size(&self) -> Result<usize> {
        let rows = self.file.tensor(EMBEDDING).and_then(|tensor| tensor.shape().first().copied());
        rows.ok_or_else(|| Error::MissingTensor {
            tensor: EMBEDDING.to_owned(),
            path: self.file.path().to_owned(),
        })
    }

    /// A file that is one of several holds only some of the tensors.
    fn check_single_file(&self) -> Result<Result<(), ConfigError>> {
        const KEY: &str = "split.count";
        let given =
            self.file.metadata().unsigned(KEY).map_err(|source| self.file.error(source))?.unwrap_or(1);
        if given <= 1 {
            return Ok(Ok(()));
        }
        Ok(Err(ConfigError::Unsupported {
            field: KEY.to_owned(),
            given: given.to_string(),
            expected: "one file that holds all tensors (llama-gguf-split --merge makes it)".to_owned(),
        }))
    }

    /// Heads of which only a part is turned are not built.
    fn check_rotary_dimensions(&self, head_dim: usize) -> Result<Result<(), ConfigError>> {
        let given = self.find_size("rope.dimension_count")?.unwrap_or(head_dim);
        if given == head_dim {
            return Ok(Ok(()));
        }
        Ok(Err(ConfigError::Unsupported {
            field: self.key("rope.dimension_count"),
            given: given.to_string(),
            expected: format!("the head's width {head_dim}"),
        }))
    }

    fn rope(&self) -> Result<Result<RopeConfig, ConfigError>> {
        let mut rope = RopeConfig::default();
        if let Some(theta) = self.float("rope.freq_base")? {
            rope.theta = theta;
        }
        if let Some(factors) = self.rope_factors()? {
            rope.scaling = RopeScaling::Factors(factors);
            return Ok(Ok(rope));
        }
        let field = self.key("rope.scaling.type");
        let kind = self.file.metadata().string(&field).map_err(|source| self.file.error(source))?;
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        let scaling = RopeScaling::from_gguf(field, kind.unwrap_or("linear"), factor);
        Ok(scaling.map(|scaling| RopeConfig { scaling, ..rope }))
    }

    /// What a converter worked out from `llama3` scaling and stored as a tensor.
    fn rope_factors(&self) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.file.tensor("rope_freqs.weight") else { return Ok(None) };
        if tensor.dtype() != quire_kernels::DType::F32 {
            return Err(Error::TensorDType {
                tensor: tensor.name().to_owned(),
                path: self.file.path().to_owned(),
                given: tensor.dtype().to_string(),
                expected: "f32".to_owned(),
            });
        }
        let bytes = self.file.bytes(tensor).expect("a parsed tensor lies inside its file");
        let factors =
            bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().expect("four bytes")));
        Ok(Some(factors.collect()))
    }
}

fn missing(file: &Gguf, field: String) -> Error {
    file.error(GgufError::MissingKey { field })
}
