//! Llama, SmolLM2, DeepSeek-LLM and others of their shape.

use super::Architecture;

/// The decoder of Llama (Touvron et al., 2023): RMS norm in front of each block, rotary positions, grouped
/// queries, a gated MLP; biases only where `attention_bias` or `mlp_bias` ask for them.
#[derive(Debug, Clone, Copy)]
pub struct Llama;

impl Llama {
    /// Its name in `config.json`.
    pub const NAME: &str = "LlamaForCausalLM";
}

impl Architecture for Llama {}
