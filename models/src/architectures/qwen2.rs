//! Qwen2 and Qwen2.5.

use super::{Architecture, CausalLm, Loader, Model, decoder_tensors};
use crate::checkpoint::{Checkpoint, TensorSpec};
use crate::error::Result;

/// The decoder of Qwen2 (Yang et al., 2024): Llama's, with biases on q, k and v, and a sliding window in
/// the upper layers where `use_sliding_window` is set. Both are read into the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Qwen2;

impl Qwen2 {
    /// Its name in `config.json`.
    pub const NAME: &str = "Qwen2ForCausalLM";
}

impl Architecture for Qwen2 {
    fn build(&self, loader: &Loader<'_>) -> Result<Box<dyn Model>> {
        Ok(Box::new(CausalLm::load(loader)?))
    }

    fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>> {
        decoder_tensors(checkpoint)
    }
}
