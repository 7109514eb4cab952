//! Phi-3 and Phi-4.

use super::{Architecture, DecoderSpec, Storage};

/// The decoder of Phi-3 (Abdin et al., 2024): Llama's, with q, k, v and gate, up each in one tensor; often with LongRoPE, and
/// with a part of each head left unturned.
#[derive(Debug, Clone, Copy)]
pub struct Phi3;

impl Phi3 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Phi3ForCausalLM";
}

impl Architecture for Phi3 {
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec { qkv: Storage::Packed, gate_up: Storage::Packed, ..DecoderSpec::default() }
    }
}
