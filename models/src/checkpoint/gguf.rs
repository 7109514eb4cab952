//! A GGUF file as a checkpoint: its names and its row order turned into those of Hugging Face.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::gguf_names::GgufNames;
use super::{
    Checkpoint, HostTensor, LoadOptions, StoredPart, Surveyed, TensorInfo, TensorSource, TensorSpec,
    WeightDType,
};
use crate::check::Finding;
use crate::config::{GenerationConfig, ModelConfig, ROPE_TENSORS};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorEntry};
use crate::mmap::TensorBytes;

/// Architectures whose q and k rows converters to GGUF store so that the two elements which rotate together are
/// neighbours; the models here, like the originals, have them half a head apart.
const INTERLEAVED: [&str; 3] = ["LlamaForCausalLM", "MixtralForCausalLM", "GraniteForCausalLM"];

pub(super) fn survey(path: &Path, options: &LoadOptions, errors: &mut Vec<Error>) -> Option<Surveyed> {
    let file = Gguf::survey(path, errors).map_err(|error| errors.push(error)).ok()?;
    let mut own = Vec::new();
    let config = ModelConfig::survey_gguf(&file, &mut own);
    let config_is_sound = own.is_empty();
    // A tensor that the configuration is read from may be one of those that are not sound.
    let is_told = !errors.is_empty();
    errors.extend(own.into_iter().filter(|error| !(is_told && matches!(error, Error::MissingTensor { .. }))));
    let has_tensors = file.tensors().next().is_some();
    Some(Surveyed { checkpoint: open(options, config, Arc::new(file)), config_is_sound, has_tensors })
}

fn open(options: &LoadOptions, config: ModelConfig, file: Arc<Gguf>) -> Checkpoint {
    let source = Box::new(GgufTensors {
        file: Arc::clone(&file),
        names: GgufNames::of(&config.architecture),
        num_experts: config.moe.as_ref().map_or(0, |moe| moe.num_experts),
        head_dim: config.head_dim,
        interleaved: INTERLEAVED.contains(&config.architecture.as_str()),
    });
    Checkpoint {
        path: file.path().to_owned(),
        config,
        generation: GenerationConfig::default(),
        source,
        dtype: options.dtype.map(WeightDType::dtype),
        quantize: options.quantize,
        gguf: Some(file),
    }
}

/// The tensors of a GGUF file under Hugging Face's names.
#[derive(Debug)]
struct GgufTensors {
    file: Arc<Gguf>,
    names: GgufNames,
    /// Matrices in the tensors of experts.
    num_experts: usize,
    head_dim: usize,
    /// Whether elements that rotate together are neighbours.
    interleaved: bool,
}

/// A matrix or vector of the file.
struct Found<'a> {
    tensor: &'a TensorEntry,
    /// Which part of the tensor, of how many.
    part: Option<(usize, usize)>,
}

impl GgufTensors {
    fn find(&self, name: &str) -> Option<Found<'_>> {
        let place = self.names.place(name)?;
        if let Some(tensor) = place.tensor_of_expert().and_then(|name| self.file.tensor(&name)) {
            return Some(Found { tensor, part: None });
        }
        let tensor = self.file.tensor(&place.tensor)?;
        let Some(expert) = place.expert else { return Some(Found { tensor, part: None }) };
        let num_parts = tensor.shape().first().copied().filter(|_| tensor.shape().len() == 3)?;
        (expert < num_parts).then_some(Found { tensor, part: Some((expert, num_parts)) })
    }

    fn is_interleaved(&self, name: &str) -> bool {
        self.interleaved && (name.contains(".q_proj.") || name.contains(".k_proj."))
    }
}

impl TensorSource for GgufTensors {
    fn format(&self) -> &'static str {
        "gguf"
    }

    fn stored_name(&self, name: &str) -> String {
        self.names.place(name).map_or_else(|| name.to_owned(), |place| place.to_string())
    }

    fn names(&self) -> Vec<String> {
        let known = |tensor: &TensorEntry| {
            let names = self.names.names(tensor.name(), self.num_experts);
            names.unwrap_or_else(|| vec![tensor.name().to_owned()])
        };
        // The rotary factors are part of the configuration.
        let tensors = self.file.tensors().filter(|tensor| !ROPE_TENSORS.contains(&tensor.name()));
        let mut names: Vec<String> = tensors.flat_map(known).collect();
        names.sort();
        names
    }

    fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn is_lost(&self, name: &str) -> bool {
        self.names.place(name).is_some_and(|place| self.file.is_lost(&place.tensor))
    }

    fn parts(&self, spec: &TensorSpec) -> Vec<StoredPart> {
        let whole = || self.file.tensor(&spec.name).map(|tensor| Found { tensor, part: None });
        let part = self.find(&spec.name).or_else(whole).and_then(|found| {
            Some(StoredPart {
                name: self.stored_name(&spec.name),
                path: self.file.path_of(found.tensor).to_owned(),
                dtype: found.tensor.dtype(),
                bytes: found.bytes(self.file.bytes(found.tensor)?)?,
            })
        });
        part.into_iter().collect()
    }

    fn headers(&self) -> Vec<TensorBytes> {
        self.file.headers()
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.file.files()
    }

    fn notes(&self) -> Vec<Finding> {
        let note = |(path, num_bytes)| {
            let message = "bytes behind the last tensor belong to none".to_owned();
            Finding::note("trailing-bytes", path, None, Some(num_bytes), message)
        };
        self.file.trailing().map(note).collect()
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        Ok(self.find(&spec.name).map(|found| TensorInfo {
            dtype: found.tensor.dtype(),
            shape: found.shape_as(spec),
            path: self.file.path_of(found.tensor).to_owned(),
            scale_bytes: None,
        }))
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor> {
        let found = self.find(&spec.name).and_then(|found| {
            let bytes = found.bytes(self.file.bytes(found.tensor)?)?;
            Some((found, bytes))
        });
        let Some((found, mut bytes)) = found else {
            return Err(Error::MissingTensor {
                tensor: self.stored_name(&spec.name),
                path: self.file.path().to_owned(),
            });
        };
        let num_rows = found.shape().first().copied().unwrap_or(1);
        if self.is_interleaved(&spec.name) && num_rows.is_multiple_of(self.head_dim) {
            bytes = TensorBytes::Owned(rows_in_halves(&bytes, num_rows, self.head_dim));
        }
        Ok(HostTensor { dtype: found.tensor.dtype(), shape: found.shape_as(spec), bytes, scales: None })
    }
}

impl Found<'_> {
    fn shape(&self) -> &[usize] {
        &self.tensor.shape()[usize::from(self.part.is_some())..]
    }

    /// A matrix of one row may be stored as a vector.
    fn shape_as(&self, spec: &TensorSpec) -> Vec<usize> {
        let is_row = matches!((self.shape(), &spec.shape[..]), ([_], [1, _]));
        let front = is_row.then_some(1);
        front.into_iter().chain(self.shape().iter().copied()).collect()
    }

    /// Its share of the tensor's bytes. A matrix is a whole number of rows, and a row of quantized blocks.
    fn bytes(&self, all: TensorBytes) -> Option<TensorBytes> {
        match self.part {
            None => Some(all),
            Some((part, num_parts)) => {
                let len = all.len() / num_parts;
                all.window(part * len..(part + 1) * len)
            }
        }
    }
}

/// Moves whole rows from the interleaved rotary order to halves: row `j * head_dim / 2 + i` of a head is
/// its stored row `2 * i + j`. A row is a whole number of quantized blocks, so it moves as it is.
fn rows_in_halves(bytes: &[u8], num_rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / num_rows;
    let half = head_dim / 2;
    let mut moved = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(row_bytes * head_dim) {
        for row in (0..head_dim).map(|at| 2 * (at % half) + at / half) {
            moved.extend_from_slice(&head[row * row_bytes..(row + 1) * row_bytes]);
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_move_from_neighbours_to_halves() {
        // Two heads of four rows, one byte a row.
        assert_eq!(rows_in_halves(&[0, 1, 2, 3, 10, 11, 12, 13], 8, 4), [0, 2, 1, 3, 10, 12, 11, 13]);
    }
}
