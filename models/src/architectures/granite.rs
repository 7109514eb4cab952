//! Granite 3.

use super::Architecture;

/// The decoder of Granite 3 (Granite Team, 2024): Llama's, with multipliers on embeddings, scores, residuals and logits. They
/// are read into the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Granite;

impl Granite {
    /// Its name in `config.json`.
    pub const NAME: &str = "GraniteForCausalLM";
}

impl Architecture for Granite {}
