//! Mixtral.

use super::{Architecture, DecoderSpec, ExpertNames};

/// The decoder of Mixtral (Jiang et al., 2024): Mistral's, with experts in every layer.
#[derive(Debug, Clone, Copy)]
pub struct Mixtral;

impl Mixtral {
    /// Its name in `config.json`.
    pub const NAME: &str = "MixtralForCausalLM";
}

impl Architecture for Mixtral {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec {
            experts: ExpertNames { module: "block_sparse_moe", projections: ["w1", "w3", "w2"] },
            ..DecoderSpec::default()
        }
    }
}
