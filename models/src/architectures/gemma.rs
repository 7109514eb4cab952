//! Gemma 2 and the text models of Gemma 3.

use super::{Architecture, BlockNorms, DecoderSpec, QkNorm};

/// The decoder of Gemma 2 (Gemma Team, 2024): norms in front of each block and behind it, soft caps on scores and logits,
/// windows in every other layer. Norms multiply by one more than their weight and embeddings are scaled; that, the caps
/// and the windows are read into the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Gemma2;

impl Gemma2 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Gemma2ForCausalLM";
}

impl Architecture for Gemma2 {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec {
            attention_norms: BlockNorms {
                before: Some("input_layernorm"),
                after: Some("post_attention_layernorm"),
            },
            mlp_norms: BlockNorms {
                before: Some("pre_feedforward_layernorm"),
                after: Some("post_feedforward_layernorm"),
            },
            ..DecoderSpec::default()
        }
    }
}

/// The decoder of Gemma 3 (Gemma Team, 2025): Gemma 2's, with norms of each head's query and key in place of the caps, and
/// rotary positions of their own in layers with a window.
#[derive(Debug, Clone, Copy)]
pub struct Gemma3;

impl Gemma3 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Gemma3ForCausalLM";
}

impl Architecture for Gemma3 {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec { qk_norm: Some(QkNorm::PerHead), ..Gemma2.decoder() }
    }
}
