//! The configuration in a GGUF file's metadata.

use quire_kernels::RouteWeights;

use super::dialect::Dialect;
use super::faults::Faults;
use super::{
    ConfigError, MAX_LAYERS, ModelConfig, MoeConfig, RopeConfig, RopeScaling, SlidingWindow, head_dim_of,
};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, GgufError};

/// As many rows as the vocabulary has tokens.
const EMBEDDING: &str = "token_embd.weight";

/// Factors of rotary frequencies that a converter worked out.
const ROPE_FACTORS: &str = "rope_freqs.weight";
const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// Tensors that are read into the configuration.
pub(crate) const ROPE_TENSORS: [&str; 3] = [ROPE_FACTORS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG];

/// GGUF's names of architectures, and ours. A `llama` with experts is a Mixtral.
const ARCHITECTURES: [(&str, &str); 10] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen2moe", "Qwen2MoeForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3moe", "Qwen3MoeForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("granite", "GraniteForCausalLM"),
];
const MIXTRAL: &str = "MixtralForCausalLM";

/// Base of the rotary frequencies in Gemma 3's layers with a window, where the file does not say it.
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;

impl ModelConfig {
    /// Reads and validates the configuration of `file`.
    ///
    /// # Errors
    /// [`Error::Gguf`] or [`Error::Config`], naming the key.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        let mut errors = Vec::new();
        let read = Self::survey_gguf(file, &mut errors);
        errors.into_iter().next().map_or(Ok(read), Err)
    }

    /// The same, with all that is wrong. Where that is something, what was read is good for nothing but to look for more.
    pub(crate) fn survey_gguf(file: &Gguf, errors: &mut Vec<Error>) -> Self {
        let faults = Faults::default();
        let read = Self::read_gguf(file, &faults).unwrap_or_else(|error| {
            errors.push(error);
            Self::unknown()
        });
        let refuse = |source| Error::Config { path: file.path().to_owned(), source };
        errors.extend(faults.into_vec().into_iter().map(refuse));
        read
    }

    fn read_gguf(file: &Gguf, faults: &Faults) -> Result<Self> {
        let refuse = |source| Error::Config { path: file.path().to_owned(), source };
        let keys = Keys::new(file)?;
        keys.architecture(false).map_err(refuse)?;
        let hidden_size = keys.size("embedding_length")?;
        let num_heads = keys.size("attention.head_count")?;
        let num_layers = keys.size("block_count")?;
        let head_dim = match keys.find_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => head_dim_of(hidden_size, num_heads, &|field| keys.name(field)).map_err(refuse)?,
        };
        let moe = keys.moe(num_layers)?.map(|moe| moe.map_err(refuse)).transpose()?;
        let architecture = keys.architecture(moe.is_some()).map_err(refuse)?;
        let (rope, local_rope) = keys.ropes(head_dim)?.map_err(refuse)?;
        let has_bias = |tensor: &str| file.tensor(&format!("blk.0.{tensor}.bias")).is_some();
        let eos = keys.token_id("eos")?.into_iter().chain(keys.token_id("eot")?);
        let factor = |name: &str| keys.float(name).map(|factor| factor.unwrap_or(1.0) as f32);
        let mut config = Self {
            architecture,
            hidden_size,
            intermediate_size: keys.size("feed_forward_length")?,
            num_layers,
            num_heads,
            num_kv_heads: keys.find_size("attention.head_count_kv")?.unwrap_or(num_heads),
            head_dim,
            vocab_size: keys.vocab_size()?,
            max_position_embeddings: keys.size("context_length")?,
            rms_norm_eps: keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
            rope,
            local_rope,
            attention_scale: keys.attention_scale(head_dim, hidden_size, num_heads, num_layers)?,
            attention_soft_cap: keys.soft_cap("attn_logit_softcapping", 50.0)?,
            logits_soft_cap: keys.soft_cap("final_logit_softcapping", 30.0)?,
            embedding_scale: match keys.is_gemma() {
                true => (hidden_size as f32).sqrt(),
                false => factor("embedding_scale")?,
            },
            residual_scale: factor("residual_scale")?,
            logits_scale: 1.0 / factor("logit_scale")?,
            // Converters have added it.
            norm_offset: 0.0,
            moe,
            hidden_act: if keys.is_gemma() { "gelu_pytorch_tanh" } else { "silu" }.to_owned(),
            tie_word_embeddings: file.tensor("output.weight").is_none(),
            qkv_bias: has_bias("attn_q") || has_bias("attn_qkv"),
            output_bias: has_bias("attn_output"),
            mlp_bias: has_bias("ffn_up"),
            sliding_window: keys.sliding_window(num_layers)?,
            bos_token_id: keys.token_id("bos")?,
            eos_token_ids: eos.collect(),
            dtype: None,
            raw: serde_json::Map::new(),
        };
        config.eos_token_ids.dedup();
        let (dialect, rotary_dim) = (Dialect::of(&config.architecture), config.rope.rotary_dim);
        faults.take(dialect.check_rotary_dim(rotary_dim, head_dim, &|field| keys.name(field)));
        config.check(&|field| keys.name(field), faults);
        Ok(config)
    }
}

/// Fields of `config.json`, and the keys of an architecture that hold the same.
const KEYS: [(&str, &str); 15] = [
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
    ("partial_rotary_factor", "rope.dimension_count"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("logits_scaling", "logit_scale"),
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

    fn architecture(&self, has_experts: bool) -> Result<String, ConfigError> {
        let found = ARCHITECTURES.iter().find(|(theirs, _)| *theirs == self.prefix);
        let (theirs, ours) = found.ok_or_else(|| ConfigError::GgufArchitecture {
            given: self.prefix.to_owned(),
            known: ARCHITECTURES.map(|(theirs, _)| theirs).join(", "),
        })?;
        Ok(if *theirs == "llama" && has_experts { MIXTRAL } else { ours }.to_owned())
    }

    fn is_gemma(&self) -> bool {
        self.prefix.starts_with("gemma")
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

    /// Layers of Gemma scale by the head's width, but for the largest models, which scale by what the width would be if
    /// the heads shared out the residual stream; the file does not say so.
    fn attention_scale(
        &self,
        head_dim: usize,
        hidden_size: usize,
        num_heads: usize,
        num_layers: usize,
    ) -> Result<f32> {
        if let Some(scale) = self.float("attention.scale")?.filter(|&scale| scale != 0.0) {
            return Ok(scale as f32);
        }
        let is_27b = matches!((self.prefix, num_layers), ("gemma2", 46) | ("gemma3", 62));
        let scalar = if is_27b { hidden_size / num_heads.max(1) } else { head_dim };
        Ok((scalar as f32).sqrt().recip())
    }

    /// Gemma 2 has soft caps whether the file says so or not.
    fn soft_cap(&self, name: &str, of_gemma2: f64) -> Result<Option<f32>> {
        let cap = self.float(name)?.or((self.prefix == "gemma2").then_some(of_gemma2));
        Ok(cap.filter(|&cap| cap != 0.0).map(|cap| cap as f32))
    }

    fn sliding_window(&self, num_layers: usize) -> Result<Option<SlidingWindow>> {
        let num_tokens = self.find_size("attention.sliding_window")?.filter(|&tokens| tokens > 0);
        // Every how many-th layer sees everything.
        let pattern = match self.prefix {
            "gemma2" => 2,
            "gemma3" => 6,
            "phi3" => 0,
            _ => return Ok(None),
        };
        let pattern = self.find_size("attention.sliding_window_pattern").ok().flatten().unwrap_or(pattern);
        let window = num_tokens.map(|num_tokens| SlidingWindow {
            num_tokens,
            layers: SlidingWindow::all_but_every(pattern, num_layers),
        });
        Ok(window.filter(|window| window.layers.contains(&true)))
    }

    /// Mixtures of experts. Which layers have them, the tensors tell.
    fn moe(&self, num_layers: usize) -> Result<Option<Result<MoeConfig, ConfigError>>> {
        let Some(num_experts) = self.find_size("expert_count")?.filter(|&count| count > 0) else {
            return Ok(None);
        };
        const SOFTMAX: usize = 1;
        let gating = self.find_size("expert_gating_func")?.unwrap_or(SOFTMAX);
        if gating != SOFTMAX {
            return Ok(Some(Err(ConfigError::Unsupported {
                field: self.key("expert_gating_func"),
                given: gating.to_string(),
                expected: format!("{SOFTMAX}, softmax"),
            })));
        }
        let has_experts = |layer| self.file.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
        let layers: Vec<bool> = (0..num_layers.min(MAX_LAYERS)).map(has_experts).collect();
        let rows = |name: &str| {
            let first = layers.iter().position(|&has_experts| has_experts)?;
            let tensor = self.file.tensor(&format!("blk.{first}.{name}.weight"))?;
            tensor.shape().iter().rev().nth(1).copied()
        };
        let of_key = self.find_size("expert_feed_forward_length")?;
        let intermediate_size = match of_key.or_else(|| rows("ffn_up_exps")) {
            Some(size) => size,
            None => self.size("feed_forward_length")?,
        };
        Ok(Some(Ok(MoeConfig {
            num_experts,
            top_k: self.size("expert_used_count")?,
            intermediate_size,
            weights: match self.prefix {
                "qwen2moe" => RouteWeights::Probabilities,
                _ => RouteWeights::Normalized,
            },
            shared_intermediate_size: rows("ffn_up_shexp"),
            layers,
        })))
    }

    /// The rotary embedding of all layers, and that of layers with a window where they have their own.
    fn ropes(&self, head_dim: usize) -> Result<Result<(RopeConfig, Option<RopeConfig>), ConfigError>> {
        let rotary_dim = self.find_size("rope.dimension_count")?.unwrap_or(head_dim);
        let theta = self.float("rope.freq_base")?.unwrap_or(10_000.0);
        let plain = RopeConfig::plain(theta, rotary_dim);
        let local = match self.prefix {
            "gemma3" => {
                let theta = self.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_THETA);
                Some(RopeConfig::plain(theta, rotary_dim))
            }
            _ => None,
        };
        Ok(self.rope_scaling()?.map(|scaling| (RopeConfig { scaling, ..plain }, local)))
    }

    fn rope_scaling(&self) -> Result<Result<RopeScaling, ConfigError>> {
        if let Some(factors) = self.floats(ROPE_FACTORS)? {
            return Ok(Ok(RopeScaling::Factors(factors)));
        }
        let original_max_position = match self.find_size("rope.scaling.original_context_length")? {
            Some(length) => length,
            None => self.size("context_length")?,
        };
        let magnitude = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        if let (Some(short), Some(long)) = (self.floats(ROPE_FACTORS_SHORT)?, self.floats(ROPE_FACTORS_LONG)?)
        {
            let [short, long] = [short, long].map(|factors| factors.into_iter().map(f64::from).collect());
            return Ok(Ok(RopeScaling::LongRope { short, long, original_max_position, magnitude }));
        }
        let field = self.key("rope.scaling.type");
        let kind = self.file.metadata().string(&field).map_err(|source| self.file.error(source))?;
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        Ok(match (kind.unwrap_or("linear"), factor) {
            ("none", _) | ("linear", None) => Ok(RopeScaling::None),
            ("linear", Some(factor)) => Ok(RopeScaling::Linear { factor }),
            ("yarn", Some(factor)) => Ok(RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast: self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: true,
                magnitude: magnitude * (1.0 + 0.1 * factor.max(1.0).ln()),
            }),
            (given, _) => Err(ConfigError::RopeScaling {
                field,
                given: given.to_owned(),
                known: "none, linear, yarn; longrope with its tensors",
            }),
        })
    }

    /// A vector of float32 that a converter worked out.
    fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.file.tensor(name) else { return Ok(None) };
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
