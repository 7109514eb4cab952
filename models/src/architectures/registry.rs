//! Architectures by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use quire_kernels::{DType, Kernels, KvGroupSpec, Limits};

use super::{
    CausalLm, DecoderSpec, Gemma2, Gemma3, Granite, Llama, Loader, Mistral, Mixtral, Model, Olmo2, Phi3,
    Qwen2, Qwen2Moe, Qwen3, Qwen3Moe, RopeTables, decoder, decoder_tensors, model,
};
use crate::checkpoint::{Checkpoint, TensorSpec};
use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// How the models of one architecture are built, and what they need before they are.
///
/// One that is a decoder of the usual parts says which in [`decoder`](Self::decoder), and all else follows. A closure from
/// [`Loader`] to a model is an architecture too: it takes the defaults of a decoder, and the checkpoint's tensors are
/// then checked one by one as they are read.
pub trait Architecture: Send + Sync {
    /// How its decoder is put together. Llama's, unless it says otherwise.
    fn decoder(&self) -> DecoderSpec {
        DecoderSpec::default()
    }

    /// Builds the model: reads weights, packs them for the device.
    ///
    /// # Errors
    /// What is wrong with the checkpoint, or what the backend cannot do.
    fn build(&self, loader: &Loader<'_>) -> Result<Box<dyn Model>> {
        Ok(Box::new(CausalLm::load(loader, &self.decoder())?))
    }

    /// Whether there is something in a configuration that its models cannot do; [`tensors`](Self::tensors) says it too.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    fn check_config(&self, config: &ModelConfig) -> Result<()> {
        config.gate().map(drop)
    }

    /// Whether `kernels` have all that a model of this configuration needs; [`build`](Self::build) says it too.
    ///
    /// # Errors
    /// [`Error::Kernels`] with what they lack.
    fn check_kernels(&self, config: &ModelConfig, kernels: &Kernels) -> Result<()> {
        decoder::check_kernels(config, &self.decoder(), kernels)
    }

    /// Every tensor the model needs, so that a checkpoint is refused before memory is reserved for it.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] where the checkpoint leaves open what is needed.
    fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>> {
        decoder_tensors(checkpoint, &self.decoder())
    }

    /// The groups of layers that share a block table.
    fn kv_groups(&self, config: &ModelConfig, dtype: DType) -> Vec<KvGroupSpec> {
        model::kv_groups(config, dtype)
    }

    /// Bytes of the tables that the model makes for itself beside its weights: the cosines and sines of all
    /// positions.
    fn table_bytes(&self, config: &ModelConfig, limits: &Limits) -> usize {
        RopeTables::planned_bytes(config, limits.max_model_len)
    }

    /// Scratch that a forward pass within `limits` takes for activations, beside what the parts of
    /// `kernels` take themselves.
    fn scratch_bytes(&self, config: &ModelConfig, kernels: &Kernels, limits: &Limits) -> usize {
        decoder::scratch_bytes(config, &self.decoder(), kernels, limits)
    }
}

impl<F> Architecture for F
where
    F: Fn(&Loader<'_>) -> Result<Box<dyn Model>> + Send + Sync,
{
    fn build(&self, loader: &Loader<'_>) -> Result<Box<dyn Model>> {
        self(loader)
    }

    fn check_config(&self, _: &ModelConfig) -> Result<()> {
        Ok(())
    }

    fn check_kernels(&self, _: &ModelConfig, _: &Kernels) -> Result<()> {
        Ok(())
    }

    fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>> {
        checkpoint.stored()
    }
}

/// The architectures a program knows, by the name under `architectures` in `config.json`.
#[derive(Clone)]
pub struct ModelRegistry {
    architectures: BTreeMap<String, Arc<dyn Architecture>>,
}

impl ModelRegistry {
    /// A registry that knows nothing.
    pub fn empty() -> Self {
        Self { architectures: BTreeMap::new() }
    }

    /// Adds an architecture, or replaces the one of that name.
    pub fn register(&mut self, name: impl Into<String>, architecture: impl Architecture + 'static) {
        self.architectures.insert(name.into(), Arc::new(architecture));
    }

    /// The architecture of this name.
    ///
    /// # Errors
    /// [`Error::UnknownArchitecture`] with the names that are known.
    pub fn find(&self, name: &str) -> Result<&dyn Architecture> {
        let found = self.architectures.get(name).map(AsRef::as_ref);
        found.ok_or_else(|| Error::UnknownArchitecture { given: name.to_owned(), known: self.names() })
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.architectures.keys().cloned().collect()
    }
}

impl Default for ModelRegistry {
    /// The architectures of this crate.
    fn default() -> Self {
        let mut registry = Self::empty();
        registry.register(Llama::NAME, Llama);
        registry.register(Mistral::NAME, Mistral);
        registry.register(Mixtral::NAME, Mixtral);
        registry.register(Qwen2::NAME, Qwen2);
        registry.register(Qwen2Moe::NAME, Qwen2Moe);
        registry.register(Qwen3::NAME, Qwen3);
        registry.register(Qwen3Moe::NAME, Qwen3Moe);
        registry.register(Gemma2::NAME, Gemma2);
        registry.register(Gemma3::NAME, Gemma3);
        registry.register(Phi3::NAME, Phi3);
        registry.register(Olmo2::NAME, Olmo2);
        registry.register(Granite::NAME, Granite);
        registry
    }
}

impl fmt::Debug for ModelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelRegistry").field(&self.names()).finish()
    }
}
