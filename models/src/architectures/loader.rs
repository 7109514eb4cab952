//! From tensors in a checkpoint to layers on a device.

use std::sync::Arc;

use quire_kernels::{EmbeddingTable, ExpertWeights, Experts, Gate, HostWeight, Kernels, Linear, Tensor};

use super::MlpModules;
use crate::checkpoint::{Checkpoint, HostScales, HostTensor};
use crate::config::ModelConfig;
use crate::error::Result;

/// What a model is built from.
pub struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    kernels: &'a Kernels,
    max_model_len: usize,
    on_bytes: &'a dyn Fn(u64),
}

impl<'a> Loader<'a> {
    /// Loads from `checkpoint` to the device of `kernels`, for texts of at most `max_model_len` tokens.
    pub fn new(checkpoint: &'a Checkpoint, kernels: &'a Kernels, max_model_len: usize) -> Self {
        Self { checkpoint, kernels, max_model_len, on_bytes: &|_| {} }
    }

    /// Calls `on_bytes` with the bytes of every tensor once it has been read: for a progress bar.
    pub fn with_progress(self, on_bytes: &'a dyn Fn(u64)) -> Self {
        Self { on_bytes, ..self }
    }

    /// The model's configuration.
    pub fn config(&self) -> &'a ModelConfig {
        self.checkpoint.config()
    }

    /// The checkpoint itself.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// The backend.
    pub fn kernels(&self) -> &'a Kernels {
        self.kernels
    }

    /// Positions that will be asked for.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// A vector, such as the weight of a norm, on the device in float32.
    ///
    /// # Errors
    /// What is wrong with the tensor; the device is out of memory.
    pub fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        self.vector_with(name, len, |value| value)
    }

    /// As [`vector`](Self::vector), each element put through `prepare`.
    ///
    /// # Errors
    /// As [`vector`](Self::vector).
    pub fn vector_with(&self, name: &str, len: usize, prepare: impl Fn(f32) -> f32) -> Result<Tensor> {
        let values: Vec<f32> = self.checkpoint.vector(name, len)?.into_iter().map(prepare).collect();
        (self.on_bytes)(4 * len as u64);
        Ok(self.kernels.upload(quire_kernels::DType::F32, &[len], &values)?)
    }

    /// One linear layer.
    ///
    /// # Errors
    /// What is wrong with a tensor; what the backend cannot pack.
    pub fn linear(&self, module: &LinearModule, in_features: usize) -> Result<Box<dyn Linear>> {
        self.merged(std::slice::from_ref(module), in_features)
    }

    /// A matrix `[rows, columns]` that is looked up and never multiplied; a device may leave it where it lies.
    ///
    /// # Errors
    /// As [`Loader::linear`].
    pub fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Box<dyn EmbeddingTable>> {
        let name = format!("{name}.weight");
        let HostTensor { dtype, bytes, scales, .. } = self.checkpoint.tensor(&name, &[rows, columns])?;
        let (stored_name, bytes) = (self.checkpoint.stored_name(&name), Arc::new(bytes));
        let scales = scales.as_ref().map(HostScales::as_weight_scales);
        let weight =
            HostWeight { name: &stored_name, dtype, rows, columns, data: &bytes, scales, bias: None };
        let table = self.kernels.linear().pack_table(&weight, bytes.clone())?;
        (self.on_bytes)(bytes.len() as u64);
        Ok(table)
    }

    /// Linear layers that read the same input, packed into one whose outputs stand side by side. They may
    /// be stored in different dtypes.
    ///
    /// # Errors
    /// As [`Loader::linear`].
    pub fn merged(&self, modules: &[LinearModule], in_features: usize) -> Result<Box<dyn Linear>> {
        let read = modules.iter().map(|module| self.read(module, in_features));
        let read = read.collect::<Result<Vec<_>>>()?;
        let weights: Vec<HostWeight<'_>> = read.iter().map(LinearTensors::as_host_weight).collect();
        let packed = self.kernels.linear().pack(&weights)?;
        (self.on_bytes)(read.iter().map(|tensors| tensors.weight.bytes.len() as u64).sum());
        Ok(packed)
    }

    /// The experts of a layer.
    ///
    /// # Errors
    /// As [`Loader::linear`]; the backend has no experts.
    pub fn experts(
        &self,
        modules: &[MlpModules],
        hidden_size: usize,
        intermediate_size: usize,
        gate: Gate,
    ) -> Result<Box<dyn Experts>> {
        let read_expert = |expert: &MlpModules| {
            let gate_up = expert.gate_up.iter().map(|module| self.read(module, hidden_size));
            Ok((gate_up.collect::<Result<Vec<_>>>()?, self.read(&expert.down, intermediate_size)?))
        };
        let read = modules.iter().map(read_expert).collect::<Result<Vec<_>>>()?;
        let weights: Vec<ExpertWeights<'_>> = read
            .iter()
            .map(|(gate_up, down)| ExpertWeights {
                gate_up: gate_up.iter().map(LinearTensors::as_host_weight).collect(),
                down: down.as_host_weight(),
            })
            .collect();
        let packed = self.kernels.moe()?.pack(&weights, gate)?;
        let tensors = read.iter().flat_map(|(gate_up, down)| gate_up.iter().chain([down]));
        (self.on_bytes)(tensors.map(|tensors| tensors.weight.bytes.len() as u64).sum());
        Ok(packed)
    }

    fn read(&self, module: &LinearModule, in_features: usize) -> Result<LinearTensors> {
        let name = format!("{}.weight", module.name);
        let weight = self.checkpoint.tensor(&name, &[module.out_features, in_features])?;
        let bias = module
            .has_bias
            .then(|| self.checkpoint.vector(&format!("{}.bias", module.name), module.out_features));
        let stored_name = self.checkpoint.stored_name(&name);
        Ok(LinearTensors { stored_name, weight, bias: bias.transpose()? })
    }
}

/// A linear layer of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearModule {
    /// Its name, without `.weight`.
    pub name: String,
    /// Rows of its weight.
    pub out_features: usize,
    /// Whether it has a `.bias`.
    pub has_bias: bool,
}

struct LinearTensors {
    stored_name: String,
    weight: HostTensor,
    bias: Option<Vec<f32>>,
}

impl LinearTensors {
    fn as_host_weight(&self) -> HostWeight<'_> {
        self.weight.as_host_weight(&self.stored_name, self.bias.as_deref())
    }
}
