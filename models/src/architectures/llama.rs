//! Llama, SmolLM2 and others of their shape.

use super::{Architecture, CausalLm, Loader, Model, decoder_tensors};
use crate::checkpoint::{Checkpoint, TensorSpec};
use crate::error::Result;

/// The decoder of Llama (Touvron et al., 2023): RMS norm in front of each block, rotary positions, grouped
/// queries, a gated MLP; biases only where `attention_bias` or `mlp_bias` ask for them.
#[derive(Debug, Clone, Copy)]
pub struct Llama;

impl Llama {
    /// Its name in `config.json`.
    pub const NAME: &str = "LlamaForCausalLM";
}

impl Architecture for Llama {
    fn build(&self, loader: &Loader<'_>) -> Result<Box<dyn Model>> {
        Ok(Box::new(CausalLm::load(loader)?))
    }

    fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>> {
        decoder_tensors(checkpoint)
    }
}
