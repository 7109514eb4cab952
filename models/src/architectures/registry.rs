//! Architectures by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use quire_kernels::{DType, Kernels, KvGroupSpec, Limits};

use super::{Llama, Loader, Model, Qwen2, decoder, model};
use crate::checkpoint::{Checkpoint, TensorSpec};
use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// How the models of one architecture are built, and what they need before they are.
///
/// A closure from [`Loader`] to a model is an architecture too. It takes the defaults of a decoder; the
/// checkpoint's tensors are then checked one by one as they are read.
pub trait Architecture: Send + Sync {
    /// Builds the model: reads weights, packs them for the device.
    ///
    /// # Errors
    /// What is wrong with the checkpoint, or what the backend cannot do.
    fn build(&self, loader: &Loader<'_>) -> Result<Box<dyn Model>>;

    /// Every tensor the model needs, so that a checkpoint is refused before memory is reserved for it.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] where the checkpoint leaves open what is needed.
    fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>> {
        checkpoint.stored()
    }

    /// The groups of layers that share a block table.
    fn kv_groups(&self, config: &ModelConfig, dtype: DType) -> Vec<KvGroupSpec> {
        model::kv_groups(config, dtype)
    }

    /// Bytes of the tables that the model makes for itself beside its weights: the cosines and sines of all
    /// positions.
    fn table_bytes(&self, config: &ModelConfig, limits: &Limits) -> usize {
        4 * limits.max_model_len * config.head_dim
    }

    /// Scratch that a forward pass within `limits` takes for activations, beside what the parts of
    /// `kernels` take themselves.
    fn scratch_bytes(&self, config: &ModelConfig, kernels: &Kernels, limits: &Limits) -> usize {
        decoder::scratch_bytes(config, kernels, limits)
    }
}

impl<F> Architecture for F
where
    F: Fn(&Loader<'_>) -> Result<Box<dyn Model>> + Send + Sync,
{
    fn build(&self, loader: &Loader<'_>) -> Result<Box<dyn Model>> {
        self(loader)
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
        registry.register(Qwen2::NAME, Qwen2);
        registry
    }
}

impl fmt::Debug for ModelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelRegistry").field(&self.names()).finish()
    }
}
