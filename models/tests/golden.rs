//! Every architecture against `transformers`: the tiny models of `tests/golden/tiny`, in float32.
//!
//! One file there is one model. Its text is computed whole, in chunks and token by token, its continuation one token at a
//! time; the logits must lie within [`TOLERANCE`] and the best token must be the same.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::runner::Runner;
use quire_kernels::testing::deferred;
use quire_kernels::{
    ActivationKernels, DeviceId, Dispatch, KernelParts, Kernels, Limits, Part, StepCtx, Tensor, reference,
};
use quire_kernels_cpu::CpuConfig;
use quire_models::testing::GoldenModel;
use quire_models::{Checkpoint, LoadOptions, Loader, ModelRegistry, rope_values};

const TOLERANCE: f32 = 1e-4;

/// A model of the folder.
struct Case {
    name: String,
    model: GoldenModel,
    checkpoint: Checkpoint,
}

fn cases() -> Vec<Case> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the folder of golden models holds some");
    paths.into_iter().map(|path| Case::open(&path)).collect()
}

impl Case {
    fn open(path: &std::path::Path) -> Self {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let model = GoldenModel::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let folder = tempfile::tempdir().unwrap();
        model.write_folder(folder.path()).unwrap();
        // The files stay mapped after the folder is gone.
        let checkpoint = Checkpoint::open(folder.path(), &LoadOptions::default());
        let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{name}: {}", common::chain(&error)));
        Self { name, model, checkpoint }
    }

    /// Limits that the text just fits, so that its last position is the last there is.
    fn limits(&self) -> Limits {
        let max_model_len = self.model.prompt.len() + self.model.greedy.len();
        Limits {
            max_num_batched_tokens: self.model.prompt.len(),
            max_num_seqs: 2,
            max_model_len,
            block_size: 8,
        }
    }

    /// Computes the prompt in chunks, then the continuation token by token; says what differs.
    fn check(&self, kernels: &Kernels, chunk_len: usize) -> Vec<String> {
        let mut runner = Runner::with_limits(&self.checkpoint, kernels.clone(), self.limits());
        let mut logits = Vec::new();
        for chunk in self.model.prompt.chunks(chunk_len) {
            logits.extend(runner.step(&[(1, chunk)]));
        }
        for token in self.model.greedy.chunks(1) {
            logits.extend(runner.step(&[(1, token)]));
        }
        let mut misses = Vec::new();
        for (place, expected) in &self.model.logits {
            let pairs = logits[*place].iter().zip(expected);
            let worst = pairs.map(|(given, expected)| (given - expected).abs()).fold(0.0, f32::max);
            if worst.is_nan() || worst >= TOLERANCE {
                misses.push(format!("{} in chunks of {chunk_len}: off by {worst} at {place}", self.name));
            }
        }
        let last = self.model.prompt.len() - 1;
        let best: Vec<u32> =
            logits[last..].iter().map(|row| best(row)).take(self.model.greedy.len()).collect();
        if best != self.model.greedy {
            misses.push(format!(
                "{} in chunks of {chunk_len}: {best:?}, not {:?}",
                self.name, self.model.greedy
            ));
        }
        misses
    }
}

/// Checks all models; every miss is told.
fn check_all(kernels: &Kernels, chunk_lens: &[usize]) {
    let cases = cases();
    let misses = cases.iter().flat_map(|case| chunk_lens.iter().flat_map(|&len| case.check(kernels, len)));
    let misses: Vec<String> = misses.collect();
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}

fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.expect("a row of logits").0 as u32
}

fn cpu() -> Kernels {
    quire_kernels_cpu::kernels(CpuConfig::default()).unwrap()
}

#[test]
fn the_reference_backend_gives_the_logits_of_transformers() {
    check_all(&reference::kernels(), &[64]);
}

#[test]
fn the_cpu_gives_the_logits_of_transformers_however_the_prompt_is_cut() {
    check_all(&cpu(), &[100, 64, 7, 1]);
}

#[test]
fn an_asynchronous_cpu_gives_the_logits_of_transformers() {
    check_all(&deferred(&cpu()), &[33]);
}

#[test]
fn every_tensor_of_the_checkpoints_is_used() {
    let registry = ModelRegistry::default();
    for Case { name, checkpoint, .. } in cases() {
        let architecture = registry.find(&checkpoint.config().architecture).unwrap();
        let summary = checkpoint.check(&architecture.tensors(&checkpoint).unwrap()).unwrap();
        assert!(summary.unused.is_empty(), "{name}: {:?}", summary.unused);
    }
}

#[test]
fn br_49_cosines_and_sines_are_those_of_transformers() {
    for case in cases() {
        let (config, max_model_len) = (case.checkpoint.config(), case.limits().max_model_len);
        let ropes: Vec<_> = [&config.rope].into_iter().chain(&config.local_rope).collect();
        assert_eq!(ropes.len(), case.model.rope.len(), "{}", case.name);
        for (rope, rows) in ropes.into_iter().zip(&case.model.rope) {
            let values = rope_values(rope, max_model_len);
            // The last legal position is the last row of the table.
            assert_eq!(values.len(), max_model_len * rope.rotary_dim);
            for (position, expected) in rows {
                let given = &values[position * rope.rotary_dim..(position + 1) * rope.rotary_dim];
                assert_eq!(given.len(), expected.len(), "{} at {position}", case.name);
                let worst = given.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-5, "{} at {position}: off by {worst}", case.name);
            }
        }
    }
}

/// A backend's activations with nothing but what every backend has.
struct SiluOnly(Kernels);

impl Part for SiluOnly {
    fn device(&self) -> DeviceId {
        self.0.device().id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        Vec::new()
    }
}

impl ActivationKernels for SiluOnly {
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> quire_kernels::Result<()> {
        self.0.activation().silu_mul(ctx, gate_up, out)
    }
}

#[test]
fn what_a_backend_has_no_kernel_for_is_refused_when_it_is_loaded() {
    let whole = reference::kernels();
    let activation = Arc::new(SiluOnly(whole.clone()));
    let kernels = Kernels::new(KernelParts { activation, moe: None, ..whole.parts().clone() }).unwrap();
    let registry = ModelRegistry::default();
    let load = |case: &Case| {
        let architecture = registry.find(&case.checkpoint.config().architecture).unwrap();
        architecture.build(&Loader::new(&case.checkpoint, &kernels, 16)).map(drop)
    };
    for case in cases() {
        let said = match case.name.as_str() {
            "gemma2" | "gemma3" => "gates of gelu_tanh",
            "granite" => "hidden states that are scaled",
            "mixtral" | "qwen2-moe" | "qwen3-moe" => "mixture-of-experts layers",
            _ => {
                load(&case).unwrap_or_else(|error| panic!("{}: {error}", case.name));
                continue;
            }
        };
        common::assert_says(&load(&case).unwrap_err(), &[said]);
    }
}
