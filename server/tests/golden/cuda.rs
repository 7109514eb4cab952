//! Models on a GPU against the same models in float32 on the CPU, where `QUIRE_TEST_CUDA` is 1.
//!
//! The bound is twice what the reference implementation's own bfloat16 differs by over the prompt: so far logits may be
//! from the CPU's there, and so far apart the best two tokens may be, in the continuation too, where the best differs.

use std::path::Path;

use quire_kernels::{DType, Kernels};
use quire_models::WeightDType;
use quire_models::testing::TinyModel;

use crate::forward::Forward;
use crate::gpu;
use crate::reference::{self, Golden, model};
use crate::{argmax, cpu, max_len, whole};

/// How far a GPU's logits were from the CPU's, at worst.
#[derive(Debug, Default)]
struct Distance {
    worst: f64,
    num_places: usize,
    num_agreed: usize,
}

/// Twice the least that the reference implementation's own bfloat16 differs by on any of the golden texts.
const TINY_BOUND: f64 = 2.0 * 0.37154;

#[test]
fn tiny_models_of_each_architecture_agree_with_the_cpu() {
    let Some(kernels) = gpu::open(|options| options.dtype = Some(DType::BF16)) else { return };
    let folder = tempfile::tempdir().expect("a folder for the models");
    let llama = TinyModel { hidden_size: 256, head_dim: 64, intermediate_size: 512, ..TinyModel::llama() };
    let qwen2 = TinyModel { architecture: "Qwen2ForCausalLM", tied: false, seed: 3, ..llama.clone() };
    for (name, tiny) in [("llama", llama), ("qwen2", qwen2)] {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::Q8_0, DType::Q4K, DType::Q6K] {
            let path = folder.path().join(format!("{name}-{dtype}.gguf"));
            TinyModel { dtype, ..tiny.clone() }.write_gguf(&path).expect("the model is written");
            let ids: Vec<u32> = (0..150).map(|i| 3 + (i * 37) % 250).collect();
            let mut pair = Pair::load(&kernels, &path, None, ids.len());
            let distance = pair.compare(&ids, ids.len(), TINY_BOUND);
            eprintln!("{name} {dtype}: {distance:?}");
            assert!(distance.worst <= TINY_BOUND, "{name} {dtype}: {distance:?}");
        }
    }
}

#[test]
fn smollm2_agrees_with_the_cpu() {
    if let Some(path) = model("QUIRE_TEST_SMOLLM2") {
        agrees_with_the_cpu(&path, "smollm2-135m");
    }
}

#[test]
fn qwen_coder_agrees_with_the_cpu() {
    if let Some(path) = model("QUIRE_TEST_QWEN_CODER") {
        agrees_with_the_cpu(&path, "qwen2.5-coder-0.5b");
    }
}

/// The golden texts, prompt and continuation, from the file's blocks and in bfloat16.
fn agrees_with_the_cpu(path: &Path, golden: &str) {
    let Some(kernels) = gpu::open(|options| options.dtype = Some(DType::BF16)) else { return };
    let golden: Golden = reference::read(golden);
    let mut misses = Vec::new();
    for dtype in [None, Some(WeightDType::BFloat16)] {
        let mut pair = Pair::load(&kernels, path, dtype, max_len(&golden));
        for prompt in &golden.prompts {
            let bound = 2.0 * prompt.max_abs_logit_difference.bfloat16;
            let distance = pair.compare(&whole(prompt), prompt.token_ids.len(), bound);
            eprintln!("{} {dtype:?}: within {bound:.2}: {distance:?}", prompt.name);
            if distance.worst > bound {
                misses.push(format!("{} {dtype:?}: {:.2}, not {bound:.2}", prompt.name, distance.worst));
            }
        }
    }
    assert!(misses.is_empty(), "{misses:?}");
}

/// A model in float32 on the CPU, and on a GPU.
struct Pair {
    exact: Forward,
    given: Forward,
}

impl Pair {
    fn load(kernels: &Kernels, path: &Path, dtype: Option<WeightDType>, max_len: usize) -> Self {
        let exact = Forward::load(cpu(), path, Some(WeightDType::Float32), DType::F32, max_len);
        Self { exact, given: Forward::load(kernels.clone(), path, dtype, DType::BF16, max_len) }
    }

    /// Compares the logits of the first `num_prompt_tokens` places, and the best tokens everywhere.
    fn compare(&mut self, ids: &[u32], num_prompt_tokens: usize, bound: f64) -> Distance {
        let mut distance = Distance::default();
        let (exact, given) = (self.exact.logits(ids), self.given.logits(ids));
        for (place, (exact, given)) in exact.iter().zip(&given).enumerate() {
            distance.compare_best(exact, given, bound);
            if place < num_prompt_tokens {
                distance.compare_logits(exact, given);
            }
        }
        distance
    }
}

impl Distance {
    fn compare_logits(&mut self, exact: &[f32], given: &[f32]) {
        let differ = exact.iter().zip(given).map(|(a, b)| f64::from((a - b).abs()));
        self.worst = differ.map(|d| if d.is_nan() { f64::INFINITY } else { d }).fold(self.worst, f64::max);
    }

    fn compare_best(&mut self, exact: &[f32], given: &[f32], bound: f64) {
        let (best, chosen) = (argmax(exact), argmax(given));
        let gap = f64::from(exact[best as usize] - exact[chosen as usize]);
        assert!(gap <= bound, "token {chosen} instead of {best}, {gap} apart");
        self.num_places += 1;
        self.num_agreed += usize::from(best == chosen);
    }
}
