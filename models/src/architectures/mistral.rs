//! Mistral.

use super::Architecture;

/// The decoder of Mistral (Jiang et al., 2023): Llama's, with a sliding window in all layers where there is one.
#[derive(Debug, Clone, Copy)]
pub struct Mistral;

impl Mistral {
    /// Its name in `config.json`.
    pub const NAME: &str = "MistralForCausalLM";
}

impl Architecture for Mistral {}
