//! OLMo 2.

use super::{Architecture, BlockNorms, DecoderSpec, QkNorm};

/// The decoder of OLMo 2 (OLMo et al., 2024): norms behind each block instead of in front, and one over all queries and one
/// over all keys of a token.
#[derive(Debug, Clone, Copy)]
pub struct Olmo2;

impl Olmo2 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Olmo2ForCausalLM";
}

impl Architecture for Olmo2 {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec {
            attention_norms: BlockNorms { before: None, after: Some("post_attention_layernorm") },
            mlp_norms: BlockNorms { before: None, after: Some("post_feedforward_layernorm") },
            qk_norm: Some(QkNorm::Whole),
            ..DecoderSpec::default()
        }
    }
}
