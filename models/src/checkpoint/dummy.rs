//! Random weights from a `config.json` alone: for measuring speed and memory of shapes one does not have.

use std::path::{Path, PathBuf};

use half::f16;
use quire_kernels::DType;

use super::hf::{self, Configs};
use super::{
    Checkpoint, HostTensor, LoadOptions, Surveyed, TensorInfo, TensorSource, TensorSpec, WeightDType,
};
use crate::error::{Error, Result};
use crate::mmap::TensorBytes;
use crate::parallel;
use crate::random::{hash_name, mix};

/// Weights are uniform in this range: activations stay finite through any number of layers.
const WEIGHT_RANGE: (f32, f32) = (-0.05, 0.05);
/// What scales normalized activations stays near one.
const NORM_RANGE: (f32, f32) = (0.9, 1.1);
/// Bytes filled from one seed; part of what a seed means.
const CHUNK_BYTES: usize = 1 << 16;

pub(super) fn survey(path: &Path, options: &LoadOptions, errors: &mut Vec<Error>) -> Option<Surveyed> {
    let Configs { config, is_sound, generation } = hf::survey_configs(path, errors)?;
    let dtype = options.dtype.map(WeightDType::dtype).or(config.dtype).unwrap_or(DType::BF16);
    let source = Box::new(DummyTensors {
        path: path.to_owned(),
        dtype,
        seed: options.seed,
        tied: config.tie_word_embeddings,
    });
    let checkpoint = Checkpoint {
        path: path.to_owned(),
        config,
        generation,
        source,
        dtype: None,
        quantize: None,
        gguf: None,
    };
    Some(Surveyed { checkpoint, config_is_sound: is_sound, has_tensors: true })
}

/// Tensors made to order: the same seed and name give the same numbers, in whatever order they are asked.
#[derive(Debug)]
struct DummyTensors {
    path: PathBuf,
    dtype: DType,
    seed: u64,
    tied: bool,
}

impl TensorSource for DummyTensors {
    fn format(&self) -> &'static str {
        "dummy"
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn contains(&self, name: &str) -> bool {
        name != "lm_head.weight" || !self.tied
    }

    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>> {
        let info = || TensorInfo {
            dtype: self.dtype,
            shape: spec.shape.clone(),
            path: self.path.clone(),
            scale_bytes: None,
        };
        Ok(self.contains(&spec.name).then(info))
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor> {
        let num_elements: usize = spec.shape.iter().product();
        let mut bytes = vec![0; num_elements * self.dtype.block_bytes()];
        let range = if spec.name.ends_with("norm.weight") { NORM_RANGE } else { WEIGHT_RANGE };
        let seed = self.seed ^ hash_name(&spec.name);
        parallel::for_each_chunk(&mut bytes, CHUNK_BYTES, |at, chunk| {
            let seed = seed ^ mix(at as u64);
            match self.dtype {
                DType::F32 => fill(seed, range, chunk, f32::to_le_bytes),
                DType::F16 => fill(seed, range, chunk, |value| f16::from_f32(value).to_le_bytes()),
                // Cut off, not rounded: it vectorizes, and is as random.
                _ => fill(seed, range, chunk, |value| ((value.to_bits() >> 16) as u16).to_le_bytes()),
            }
        });
        Ok(HostTensor {
            dtype: self.dtype,
            shape: spec.shape.clone(),
            bytes: TensorBytes::Owned(bytes),
            scales: None,
        })
    }
}

/// Fills `out` with numbers of `range`: four to each hash, 16 random bits each.
fn fill<const N: usize>(seed: u64, range: (f32, f32), out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    let (low, high) = range;
    let scale = (high - low) / f32::from(u16::MAX);
    for (group, out) in out.chunks_mut(4 * N).enumerate() {
        let bits = mix(seed.wrapping_add(group as u64));
        for (lane, out) in out.chunks_exact_mut(N).enumerate() {
            let uniform = f32::from((bits >> (16 * lane)) as u16);
            out.copy_from_slice(&encode(low + uniform * scale));
        }
    }
}
