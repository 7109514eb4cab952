//! Writing a tiny model as a Hugging Face folder.

use std::io;
use std::path::Path;

use quire_kernels::{DType, quant};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

use super::{TinyModel, TinyTensor, TinyTokenizer};

impl TinyModel {
    /// Writes `config.json`, `generation_config.json`, the tokenizer's files and the weights, in
    /// `num_shards` files (more than one come with an index).
    ///
    /// # Errors
    /// What the file system says.
    ///
    /// # Panics
    /// If `dtype` is none that safetensors has.
    pub fn write_folder(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        write_json(&folder.join("config.json"), &Value::Object(self.config_json()))?;
        let generation = json!({"bos_token_id": TinyTokenizer::BOS, "eos_token_id": [TinyTokenizer::EOS]});
        write_json(&folder.join("generation_config.json"), &generation)?;
        write_json(&folder.join("tokenizer.json"), &TinyTokenizer::json())?;
        write_json(&folder.join("tokenizer_config.json"), &TinyTokenizer::config_json())?;
        self.write_weights(folder)
    }

    fn write_weights(&self, folder: &Path) -> io::Result<()> {
        let tensors: Vec<_> = self.tensors().into_iter().map(TinyTensor::encode).collect();
        if self.num_shards <= 1 {
            return write_safetensors(&folder.join("model.safetensors"), &tensors);
        }
        let mut weight_map = Map::new();
        let shards = tensors.chunks(tensors.len().div_ceil(self.num_shards)).enumerate();
        for (at, shard) in shards {
            let name = format!("model-{:05}-of-{:05}.safetensors", at + 1, self.num_shards);
            write_safetensors(&folder.join(&name), shard)?;
            weight_map.extend(shard.iter().map(|tensor| (tensor.0.clone(), Value::from(name.as_str()))));
        }
        let total: usize = tensors.iter().map(|(.., bytes)| bytes.len()).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        write_json(&folder.join("model.safetensors.index.json"), &index)
    }
}

impl TinyTensor {
    fn encode(self) -> (String, DType, Vec<usize>, Vec<u8>) {
        let bytes = quant::encode(self.dtype, &self.values);
        (self.name, self.dtype, self.shape, bytes)
    }
}

/// Writes tensors (name, dtype, shape, bytes) as one safetensors file.
///
/// # Errors
/// What the file system says.
///
/// # Panics
/// If a dtype is none that safetensors has, or bytes do not fit a shape.
pub fn write_safetensors(path: &Path, tensors: &[(String, DType, Vec<usize>, Vec<u8>)]) -> io::Result<()> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let dtype = match dtype {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::F8E4M3 => Dtype::F8_E4M3,
            DType::I64 => Dtype::I64,
            other => panic!("no test writes {other} to safetensors"),
        };
        (name, TensorView::new(dtype, shape.clone(), bytes).expect("the bytes fit the shape"))
    });
    serialize_to_file(views, None, path).map_err(io::Error::other)
}

pub(super) fn write_json(path: &Path, value: &Value) -> io::Result<()> {
    std::fs::write(path, serde_json::to_vec_pretty(value)?)
}
