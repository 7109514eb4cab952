//! The configuration in a GGUF file's metadata.

mod keys;
mod moe;
mod rope;

use super::dialect::Dialect;
use super::{MAX_SIZE, ModelConfig, STAND_IN_SIZE, SlidingWindow, head_dim_of};
use crate::error::{Error, Result};
use crate::gguf::Gguf;

use self::keys::Keys;
pub(crate) use self::rope::ROPE_TENSORS;

/// As many rows as the vocabulary has tokens.
const EMBEDDING: &str = "token_embd.weight";

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
/// What `config.json` calls the factor of attention's scores.
const ATTENTION_MULTIPLIER: &str = "attention_multiplier";
const MIXTRAL: &str = "MixtralForCausalLM";

impl ModelConfig {
    /// Reads and validates the configuration of `file`.
    ///
    /// # Errors
    /// [`Error::Gguf`] or [`Error::Config`], naming the key; [`Error::MissingTensor`] or [`Error::TensorDType`] of a tensor that
    /// belongs to it.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        let mut errors = Vec::new();
        let read = Self::survey_gguf(file, &mut errors);
        errors.into_iter().next().map_or(Ok(read), Err)
    }

    /// The same, with all that is wrong. Where that is something, what was read is good for nothing but to look for more.
    pub(crate) fn survey_gguf(file: &Gguf, errors: &mut Vec<Error>) -> Self {
        match Keys::of(file) {
            Ok(keys) => {
                let read = Self::read_gguf(&keys);
                errors.extend(keys.into_errors());
                read
            }
            Err(error) => {
                errors.push(error);
                Self::unknown()
            }
        }
    }

    fn read_gguf(keys: &Keys<'_>) -> Self {
        let sizes = Sizes::read(keys);
        let (head_dim, num_layers) = (sizes.head_dim(), sizes.num_layers.unwrap_or(1));
        let [hidden_size, num_heads] =
            [sizes.hidden_size.unwrap_or(STAND_IN_SIZE), sizes.num_heads.unwrap_or(1)];
        let moe = keys.moe(num_layers);
        let (rope, local_rope) = sizes.ropes(keys);
        let has_bias = |tensor: &str| keys.tensor(&format!("blk.0.{tensor}.bias")).is_some();
        let eos = keys.token_id("eos").into_iter().chain(keys.token_id("eot"));
        let architecture = architecture(keys.prefix(), moe.is_some());
        let dialect = Dialect::of(&architecture);
        let of = |name: &str, field: &str| dialect.reads(field).then(|| keys.float(name)).flatten();
        let factor = |name: &str, field: &str| of(name, field).unwrap_or(1.0) as f32;
        let mut config = Self {
            hidden_size,
            intermediate_size: keys.size("feed_forward_length").unwrap_or(STAND_IN_SIZE),
            num_layers,
            num_heads,
            num_kv_heads: sizes.num_kv_heads(keys),
            head_dim,
            vocab_size: vocab_size(keys),
            max_position_embeddings: sizes.max_position.unwrap_or(STAND_IN_SIZE),
            rms_norm_eps: keys.required_float("attention.layer_norm_rms_epsilon").unwrap_or(1e-6) as f32,
            rope,
            local_rope,
            attention_scale: sizes.attention_scale(keys, of("attention.scale", ATTENTION_MULTIPLIER)),
            attention_soft_cap: soft_cap(keys, of("attn_logit_softcapping", "attn_logit_softcapping"), 50.0),
            logits_soft_cap: soft_cap(keys, of("final_logit_softcapping", "final_logit_softcapping"), 30.0),
            embedding_scale: match is_gemma(keys) {
                true => (hidden_size as f32).sqrt(),
                false => factor("embedding_scale", "embedding_multiplier"),
            },
            residual_scale: factor("residual_scale", "residual_multiplier"),
            logits_scale: 1.0 / factor("logit_scale", "logits_scaling"),
            // Converters have added it.
            norm_offset: 0.0,
            moe,
            hidden_act: if is_gemma(keys) { "gelu_pytorch_tanh" } else { "silu" }.to_owned(),
            tie_word_embeddings: keys.tensor("output.weight").is_none(),
            qkv_bias: has_bias("attn_q") || has_bias("attn_qkv"),
            output_bias: has_bias("attn_output"),
            mlp_bias: has_bias("ffn_up"),
            sliding_window: sliding_window(keys, num_layers),
            bos_token_id: keys.token_id("bos"),
            eos_token_ids: eos.collect(),
            dtype: None,
            raw: serde_json::Map::new(),
            architecture,
        };
        config.eos_token_ids.dedup();
        config.check_as(keys);
        config
    }

    fn check_as(&self, keys: &Keys<'_>) {
        let (dialect, name) = (Dialect::of(&self.architecture), |field: &str| keys.name(field));
        keys.faults().take(dialect.check_rotary_dim(self.rope.rotary_dim, self.head_dim, &name));
        self.check(&name, keys.faults());
    }
}

/// The sizes that other keys must fit, as far as they can be read.
struct Sizes {
    hidden_size: Option<usize>,
    num_heads: Option<usize>,
    num_layers: Option<usize>,
    max_position: Option<usize>,
    head_dim: Option<usize>,
}

impl Sizes {
    fn read(keys: &Keys<'_>) -> Self {
        let (hidden_size, num_heads) = (keys.size("embedding_length"), keys.size("attention.head_count"));
        let name = |field: &str| keys.name(field);
        let following = || keys.faults().take(head_dim_of(hidden_size?, num_heads?, &name));
        Self {
            hidden_size,
            num_heads,
            num_layers: keys.size("block_count"),
            max_position: keys.size("context_length"),
            head_dim: keys.find_size("attention.key_length").or_else(following),
        }
    }

    fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(STAND_IN_SIZE)
    }

    /// As many as query heads where the file does not say; what those are not known to be, these need not fit.
    fn num_kv_heads(&self, keys: &Keys<'_>) -> usize {
        let given = keys.find_size("attention.head_count_kv");
        self.num_heads.map_or(1, |num_heads| given.unwrap_or(num_heads))
    }

    /// Layers of Gemma scale by the head's width, but for the largest models, which scale by what the width would be if
    /// the heads shared out the residual stream; the file does not say so.
    fn attention_scale(&self, keys: &Keys<'_>, given: Option<f64>) -> f32 {
        if let Some(scale) = given.filter(|&scale| scale != 0.0) {
            return scale as f32;
        }
        let is_27b = matches!((keys.prefix(), self.num_layers), ("gemma2", Some(46)) | ("gemma3", Some(62)));
        let shared_out = || Some(self.hidden_size? / self.num_heads?.max(1));
        let scalar = if is_27b { shared_out() } else { None };
        (scalar.unwrap_or(self.head_dim()) as f32).sqrt().recip()
    }
}

/// The architecture's registered name. `prefix` is one of those known.
fn architecture(prefix: &str, has_experts: bool) -> String {
    let ours = ARCHITECTURES.iter().find(|(theirs, _)| *theirs == prefix).map_or("", |(_, ours)| ours);
    if prefix == "llama" && has_experts { MIXTRAL } else { ours }.to_owned()
}

fn is_gemma(keys: &Keys<'_>) -> bool {
    keys.prefix().starts_with("gemma")
}

fn vocab_size(keys: &Keys<'_>) -> usize {
    let rows = keys.tensor(EMBEDDING).and_then(|tensor| tensor.shape().first().copied());
    rows.unwrap_or_else(|| {
        let path = keys.file().path().to_owned();
        keys.add(Error::MissingTensor { tensor: EMBEDDING.to_owned(), path });
        // Any token is in such a vocabulary.
        MAX_SIZE
    })
}

/// Gemma 2 has soft caps whether the file says so or not.
fn soft_cap(keys: &Keys<'_>, given: Option<f64>, of_gemma2: f64) -> Option<f32> {
    let cap = given.or((keys.prefix() == "gemma2").then_some(of_gemma2));
    cap.filter(|&cap| cap != 0.0).map(|cap| cap as f32)
}

fn sliding_window(keys: &Keys<'_>, num_layers: usize) -> Option<SlidingWindow> {
    let num_tokens = keys.find_size("attention.sliding_window").filter(|&tokens| tokens > 0);
    // Every how many-th layer sees everything.
    let pattern = match keys.prefix() {
        "gemma2" => 2,
        "gemma3" => 6,
        "phi3" => 0,
        _ => return None,
    };
    // Some files list the layers instead.
    let pattern = keys.size_if_one("attention.sliding_window_pattern").unwrap_or(pattern);
    let window = num_tokens.map(|num_tokens| SlidingWindow {
        num_tokens,
        layers: SlidingWindow::all_but_every(pattern, num_layers),
    });
    window.filter(|window| window.layers.contains(&true))
}
