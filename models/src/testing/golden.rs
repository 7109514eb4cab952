//! Tiny models whose logits another implementation has worked out.

use std::io;
use std::path::Path;

use quire_kernels::{DType, quant};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::folder::{write_json, write_safetensors};
use crate::random::{hash_name, mix};

/// A file of `tests/golden/tiny`: a configuration, the names and shapes of its tensors, and what `transformers` gives.
/// The weights themselves are made from the seed, here as in the script that wrote the file.
#[derive(Debug, Clone, Deserialize)]
pub struct GoldenModel {
    /// What gave the logits, with its version.
    pub source: String,
    /// Seed of the weights.
    pub seed: u64,
    /// Its `config.json`.
    pub config: Map<String, Value>,
    /// The tensors of its checkpoint.
    pub tensors: Vec<GoldenTensor>,
    /// Tokens of a text.
    pub prompt: Vec<u32>,
    /// Its greedy continuation.
    pub greedy: Vec<u32>,
    /// Cosines, then sines, of some positions: of layers that see everything, then of layers with a window where they have
    /// their own.
    pub rope: Vec<Vec<(usize, Vec<f32>)>>,
    /// The logits after some tokens of both, with the token's place.
    pub logits: Vec<(usize, Vec<f32>)>,
}

/// A tensor of a [`GoldenModel`]: uniform numbers around `center`.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "(String, Vec<usize>, f32, f32)")]
pub struct GoldenTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The mean.
    pub center: f32,
    /// How far from the mean at most.
    pub spread: f32,
}

impl GoldenModel {
    /// Reads such a file.
    ///
    /// # Errors
    /// What the file system says; what is wrong with its form.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Writes its `config.json` and its weights, in float32.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write_folder(&self, folder: &Path) -> io::Result<()> {
        write_json(&folder.join("config.json"), &Value::Object(self.config.clone()))?;
        let tensors: Vec<_> = self.tensors.iter().map(|tensor| self.encoded(tensor)).collect();
        write_safetensors(&folder.join("model.safetensors"), &tensors)
    }

    /// The elements of one of its tensors.
    pub fn values(&self, tensor: &GoldenTensor) -> Vec<f32> {
        let key = mix(self.seed) ^ hash_name(&tensor.name);
        let uniform = |at: u64| (mix(key ^ at) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let num_elements = tensor.shape.iter().product::<usize>() as u64;
        (0..num_elements).map(|at| tensor.center + tensor.spread * uniform(at)).collect()
    }

    fn encoded(&self, tensor: &GoldenTensor) -> (String, DType, Vec<usize>, Vec<u8>) {
        let bytes = quant::encode(DType::F32, &self.values(tensor));
        (tensor.name.clone(), DType::F32, tensor.shape.clone(), bytes)
    }
}

impl From<(String, Vec<usize>, f32, f32)> for GoldenTensor {
    fn from((name, shape, center, spread): (String, Vec<usize>, f32, f32)) -> Self {
        Self { name, shape, center, spread }
    }
}
