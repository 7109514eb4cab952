//! What the configurations of one architecture leave unsaid: defaults, and meanings that only its name tells.

use serde_json::{Map, Value};

use super::{ConfigError, Naming};

/// One architecture's ways.
pub(super) struct Dialect {
    /// Its name under `architectures`.
    pub(super) architecture: &'static str,
    /// Its name under `model_type`.
    pub(super) model_type: &'static str,
    /// What the reference assumes for fields that are absent, a JSON object.
    defaults: &'static str,
    /// Which layers look through a window, where the file gives one.
    pub(super) windows: Windows,
    /// Where projections have biases.
    pub(super) biases: Biases,
    /// Added to the weights of norms before they multiply.
    pub(super) norm_offset: f32,
    /// Whether embeddings are multiplied by the root of their width.
    pub(super) scales_embeddings: bool,
    /// Whether the MLPs are mixtures of experts.
    pub(super) has_experts: bool,
    /// Whether a part of a head may be left unturned.
    turns_partly: bool,
    /// Whether layers with a window are turned in a way of their own.
    pub(super) has_local_rope: bool,
    /// Those of [`PARTICULAR`] that it reads.
    reads: &'static [&'static str],
}

/// Fields that mean something in the configurations of some architectures only. The reference leaves them alone in others,
/// where tools and people leave them behind.
const PARTICULAR: [&str; 17] = [
    "attention_bias",
    "attention_multiplier",
    "attn_logit_softcapping",
    "decoder_sparse_step",
    "embedding_multiplier",
    "final_logit_softcapping",
    "hidden_activation",
    "logits_scaling",
    "mlp_bias",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "qkv_bias",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "rope_local_base_freq",
    "shared_expert_intermediate_size",
];

/// Which layers look through a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// None: the reference does not read the field.
    Ignored,
    /// Those that `layer_types` says; all where there is no such list.
    All,
    /// Those that `layer_types` says; else, where `use_sliding_window` is set, those from `max_window_layers` on.
    Upper,
    /// Those that `layer_types` says; else all but every `sliding_window_pattern`-th.
    Pattern,
    /// None: a file that asks for some is refused.
    Refused,
}

/// Where projections have biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Biases {
    /// On all four of attention where `attention_bias` says so.
    Attention,
    /// On q, k and v, whatever the file says.
    Qkv,
    /// On q, k and v where `qkv_bias` says so.
    QkvIfSet,
}

const PLAIN: Dialect = Dialect {
    architecture: "",
    model_type: "",
    defaults: "{}",
    windows: Windows::All,
    biases: Biases::Attention,
    norm_offset: 0.0,
    scales_embeddings: false,
    has_experts: false,
    turns_partly: false,
    has_local_rope: false,
    reads: &[],
};

const DIALECTS: [Dialect; 12] = [
    Dialect {
        architecture: "LlamaForCausalLM",
        model_type: "llama",
        defaults: r#"{"max_position_embeddings": 2048, "vocab_size": 32000}"#,
        windows: Windows::Ignored,
        reads: &["attention_bias", "mlp_bias"],
        ..PLAIN
    },
    Dialect {
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        defaults: r#"{"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072,
                      "vocab_size": 32000}"#,
        ..PLAIN
    },
    Dialect {
        architecture: "MixtralForCausalLM",
        model_type: "mixtral",
        defaults: r#"{"num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
                      "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 131072, "vocab_size": 32000}"#,
        has_experts: true,
        ..PLAIN
    },
    Dialect {
        architecture: "Qwen2ForCausalLM",
        model_type: "qwen2",
        defaults: r#"{"max_position_embeddings": 32768, "vocab_size": 151936}"#,
        windows: Windows::Upper,
        biases: Biases::Qkv,
        ..PLAIN
    },
    Dialect {
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        defaults: r#"{"head_dim": 128, "max_position_embeddings": 32768, "vocab_size": 151936}"#,
        windows: Windows::Upper,
        reads: &["attention_bias"],
        ..PLAIN
    },
    Dialect {
        architecture: "Qwen2MoeForCausalLM",
        model_type: "qwen2_moe",
        defaults: r#"{"num_experts": 60, "num_experts_per_tok": 4, "norm_topk_prob": false, "moe_intermediate_size": 1408,
                      "shared_expert_intermediate_size": 5632, "qkv_bias": true, "max_position_embeddings": 32768,
                      "vocab_size": 151936}"#,
        windows: Windows::Refused,
        biases: Biases::QkvIfSet,
        has_experts: true,
        reads: &[
            "decoder_sparse_step",
            "mlp_only_layers",
            "moe_intermediate_size",
            "norm_topk_prob",
            "qkv_bias",
            "shared_expert_intermediate_size",
        ],
        ..PLAIN
    },
    Dialect {
        architecture: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        defaults: r#"{"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": false, "moe_intermediate_size": 768,
                      "max_position_embeddings": 32768, "vocab_size": 151936}"#,
        windows: Windows::Refused,
        has_experts: true,
        reads: &[
            "attention_bias",
            "decoder_sparse_step",
            "mlp_only_layers",
            "moe_intermediate_size",
            "norm_topk_prob",
        ],
        ..PLAIN
    },
    Dialect {
        architecture: "Gemma2ForCausalLM",
        model_type: "gemma2",
        defaults: r#"{"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 2,
                      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "tie_word_embeddings": true,
                      "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "vocab_size": 256000}"#,
        windows: Windows::Pattern,
        norm_offset: 1.0,
        scales_embeddings: true,
        reads: &[
            "attention_bias",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "hidden_activation",
            "query_pre_attn_scalar",
        ],
        ..PLAIN
    },
    Dialect {
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        defaults: r#"{"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
                      "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "tie_word_embeddings": true,
                      "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "vocab_size": 262208}"#,
        windows: Windows::Pattern,
        norm_offset: 1.0,
        scales_embeddings: true,
        has_local_rope: true,
        reads: &[
            "attention_bias",
            "final_logit_softcapping",
            "hidden_activation",
            "query_pre_attn_scalar",
            "rope_local_base_freq",
        ],
        ..PLAIN
    },
    Dialect {
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        defaults: r#"{"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, "max_position_embeddings": 4096,
                      "vocab_size": 32064}"#,
        turns_partly: true,
        ..PLAIN
    },
    Dialect {
        architecture: "Olmo2ForCausalLM",
        model_type: "olmo2",
        defaults: r#"{"rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "vocab_size": 50304}"#,
        windows: Windows::Ignored,
        reads: &["attention_bias"],
        ..PLAIN
    },
    Dialect {
        architecture: "GraniteForCausalLM",
        model_type: "granite",
        defaults: r#"{"attention_multiplier": 1.0, "max_position_embeddings": 2048, "vocab_size": 32000}"#,
        windows: Windows::Ignored,
        reads: &[
            "attention_bias",
            "attention_multiplier",
            "embedding_multiplier",
            "logits_scaling",
            "mlp_bias",
            "residual_multiplier",
        ],
        ..PLAIN
    },
];

impl Dialect {
    /// That of an architecture; a plain one where it is a stranger's.
    pub(super) fn of(architecture: &str) -> &'static Self {
        DIALECTS.iter().find(|dialect| dialect.architecture == architecture).unwrap_or(&PLAIN)
    }

    pub(super) fn of_model_type(model_type: &str) -> Option<&'static Self> {
        DIALECTS.iter().find(|dialect| dialect.model_type == model_type)
    }

    /// The reference's models of most architectures do not read the share that is turned.
    pub(super) fn check_rotary_dim(
        &self,
        rotary_dim: usize,
        head_dim: usize,
        name: Naming<'_>,
    ) -> Result<(), ConfigError> {
        if rotary_dim == head_dim || self.turns_partly {
            return Ok(());
        }
        Err(ConfigError::Unsupported {
            field: name("partial_rotary_factor"),
            given: format!("{rotary_dim} of {head_dim} elements"),
            expected: "all of them for this architecture".to_owned(),
        })
    }

    /// Whether a field means something to it. To a stranger all may.
    pub(super) fn reads(&self, field: &str) -> bool {
        self.architecture.is_empty() || !PARTICULAR.contains(&field) || self.reads.contains(&field)
    }

    /// What it reads of `config`, with what the reference assumes for absent fields. One that is there and `null` stays so.
    pub(super) fn complete(&self, config: &Map<String, Value>) -> Map<String, Value> {
        let mut complete: Map<String, Value> =
            serde_json::from_str(self.defaults).expect("the defaults are an object");
        let given = config.iter().filter(|(field, _)| self.reads(field));
        complete.extend(given.map(|(field, value)| (field.clone(), value.clone())));
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_objects_and_fill_only_what_is_absent() {
        let config: Map<String, Value> =
            serde_json::from_str(r#"{"head_dim": 64, "sliding_window": null}"#).unwrap();
        for dialect in &DIALECTS {
            let complete = dialect.complete(&config);
            assert_eq!(
                (&complete["head_dim"], &complete["sliding_window"]),
                (&Value::from(64), &Value::Null)
            );
        }
        assert_eq!(Dialect::of("Gemma2ForCausalLM").complete(&config)["attn_logit_softcapping"], 50.0);
    }

    #[test]
    fn what_an_architecture_reads_is_among_what_some_read() {
        for dialect in &DIALECTS {
            assert!(dialect.reads.iter().all(|field| PARTICULAR.contains(field)), "{}", dialect.architecture);
        }
    }
}
