//! Qwen3 and its mixtures of experts.

use super::{Architecture, DecoderSpec, QkNorm};

/// The decoder of Qwen3 (Yang et al., 2025): Qwen2's without biases, each head's query and key normalized before they are
/// turned.
#[derive(Debug, Clone, Copy)]
pub struct Qwen3;

impl Qwen3 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Qwen3ForCausalLM";
}

impl Architecture for Qwen3 {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec { qk_norm: Some(QkNorm::PerHead), ..DecoderSpec::default() }
    }
}

/// As [`Qwen3`], with experts in the layers that `decoder_sparse_step` and `mlp_only_layers` leave them.
#[derive(Debug, Clone, Copy)]
pub struct Qwen3Moe;

impl Qwen3Moe {
    /// Its name in `config.json`.
    pub const NAME: &str = "Qwen3MoeForCausalLM";
}

impl Architecture for Qwen3Moe {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec { qk_norm: Some(QkNorm::PerHead), ..DecoderSpec::default() }
    }
}
