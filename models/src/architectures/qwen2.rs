//! Qwen2, Qwen2.5 and their mixtures of experts.

use super::Architecture;

/// The decoder of Qwen2 (Yang et al., 2024): Llama's, with biases on q, k and v, and a sliding window in
/// the upper layers where `use_sliding_window` is set. Both are read into the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Qwen2;

impl Qwen2 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Qwen2ForCausalLM";
}

impl Architecture for Qwen2 {}

/// As [`Qwen2`], with experts in the layers that `decoder_sparse_step` and `mlp_only_layers` leave them, and one expert in each
/// that all tokens share.
#[derive(Debug, Clone, Copy)]
pub struct Qwen2Moe;

impl Qwen2Moe {
    /// Its name in `config.json`.
    pub const NAME: &str = "Qwen2MoeForCausalLM";
}

impl Architecture for Qwen2Moe {}
