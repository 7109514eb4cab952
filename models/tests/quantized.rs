//! Quantized folders against the logits of their dequantized weights; `tests/tools/quantized_goldens.py`
//! and `quantized_moe_goldens.py` say by whom.

mod common;

use std::path::{Path, PathBuf};

use common::runner::Runner;
use quire_kernels::{DType, Kernels, reference};
use quire_models::{Checkpoint, LoadOptions, OnlineQuantization, WeightDType};
use serde_json::Value;

const NAMES: [&str; 25] = [
    "gptq",
    "gptq-act-order",
    "gptq-8",
    "gptq-channel",
    "gptq-v2",
    "awq",
    "fp8-static",
    "fp8-block",
    "ct-fp8-channel",
    "ct-w4a16",
    "ct-w4a16-asym",
    "ct-w8a16",
    "ct-w8a8",
    "ct-w8a8-asym",
    "qwen3-moe-gptq-act-order",
    "qwen3-moe-awq",
    "qwen3-moe-fp8-static",
    "qwen3-moe-fp8-block",
    "qwen3-moe-ct-w4a16",
    "qwen3-moe-ct-w8a8",
    "qwen3-moe-ct-fp8-channel",
    "mixtral-gptq",
    "mixtral-awq",
    "mixtral-fp8-static",
    "mixtral-ct-w4a16-asym",
];

/// Logits may differ so much: float32 against float64.
const TOLERANCE: f32 = 1e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized").join(name)
}

fn cpu() -> Kernels {
    quire_kernels_cpu::kernels(quire_kernels_cpu::CpuConfig { threads: Some(2), isa: None }).unwrap()
}

struct Golden {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<(usize, Vec<f32>)>,
}

impl Golden {
    fn read(name: &str) -> Self {
        let text = std::fs::read(folder(name).join("golden.json")).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        let part = |key: &str| value[key].clone();
        Self {
            prompt: serde_json::from_value(part("prompt")).unwrap(),
            greedy: serde_json::from_value(part("greedy")).unwrap(),
            logits: serde_json::from_value(part("logits")).unwrap(),
        }
    }
}

/// The logits after each token: the prompt in two chunks, then token by token.
fn run(checkpoint: &Checkpoint, kernels: Kernels, golden: &Golden) -> Vec<Vec<f32>> {
    let mut runner = Runner::new(checkpoint, kernels);
    let (first, rest) = golden.prompt.split_at(7);
    let mut logits = runner.step(&[(0, first)]);
    logits.extend(runner.step(&[(0, rest)]));
    for token in &golden.greedy {
        logits.extend(runner.step(&[(0, &[*token])]));
    }
    logits
}

fn largest_error(logits: &[Vec<f32>], golden: &Golden) -> f32 {
    let of_place = |(place, expected): &(usize, Vec<f32>)| {
        expected.iter().zip(&logits[*place]).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()))
    };
    assert!(logits.iter().flatten().all(|logit| logit.is_finite()));
    golden.logits.iter().map(of_place).fold(0.0, f32::max)
}

fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("there are logits").0 as u32
}

#[test]
fn quantized_folders_give_the_logits_of_their_dequantized_weights() {
    for name in NAMES {
        let golden = Golden::read(name);
        let checkpoint = Checkpoint::open(&folder(name), &LoadOptions::default()).unwrap();
        for (backend, kernels) in [("cpu", cpu()), ("reference", reference::kernels())] {
            let logits = run(&checkpoint, kernels, &golden);
            let error = largest_error(&logits, &golden);
            assert!(error <= TOLERANCE, "{name} on {backend}: {error}");
            let continued: Vec<u32> = logits[golden.prompt.len() - 1..].iter().map(|l| best(l)).collect();
            assert_eq!(continued[..golden.greedy.len()], golden.greedy, "{name} on {backend}");
        }
    }
}

#[test]
fn a_quantized_folder_can_be_read_as_float32() {
    let options = LoadOptions { dtype: Some(WeightDType::Float32), ..LoadOptions::default() };
    for name in ["gptq-act-order", "awq", "fp8-block", "ct-w8a8-asym"] {
        let golden = Golden::read(name);
        let checkpoint = Checkpoint::open(&folder(name), &options).unwrap();
        let logits = run(&checkpoint, cpu(), &golden);
        assert!(largest_error(&logits, &golden) <= TOLERANCE, "{name}");
    }
}

#[test]
fn weights_stay_as_small_as_they_are_stored() {
    let q_proj = "model.layers.0.self_attn.q_proj.weight";
    for (name, dtype) in [
        ("gptq", DType::U4),
        ("gptq-8", DType::U8),
        ("awq", DType::U4),
        ("fp8-static", DType::F8E4M3),
        ("ct-w4a16", DType::U4),
        ("ct-w8a16", DType::U8),
        ("ct-w8a8", DType::I8),
    ] {
        let checkpoint = Checkpoint::open(&folder(name), &LoadOptions::default()).unwrap();
        let tensor = checkpoint.tensor(q_proj, &[64, 64]).unwrap();
        assert_eq!(tensor.dtype, dtype, "{name}");
        assert_eq!(Some(tensor.bytes.len()), dtype.bytes_for(64 * 64), "{name}");
        assert!(tensor.scales.is_some(), "{name}");
    }
}

#[test]
fn every_stored_tensor_has_its_use() {
    for name in NAMES {
        let summary = common::open_and_check(&folder(name)).unwrap();
        let unused: Vec<_> = summary.unused.iter().filter(|name| !name.ends_with("_scale")).collect();
        assert!(unused.is_empty(), "{name}: {unused:?}");
        assert!(!summary.scaled_dtypes.is_empty(), "{name}");
    }
}

#[test]
fn dense_weights_can_be_quantized_to_8_bit_floats_while_they_are_read() {
    let model = quire_models::testing::TinyModel::llama();
    let path = tempfile::tempdir().unwrap();
    model.write_folder(path.path()).unwrap();
    let plain = Checkpoint::open(path.path(), &LoadOptions::default()).unwrap();
    let options = LoadOptions { quantize: Some(OnlineQuantization::Fp8), ..LoadOptions::default() };
    let quantized = Checkpoint::open(path.path(), &options).unwrap();

    let name = "model.layers.1.mlp.down_proj.weight";
    let (exact, rounded) =
        (plain.tensor(name, &[64, 128]).unwrap(), quantized.tensor(name, &[64, 128]).unwrap());
    assert_eq!(rounded.dtype, DType::F8E4M3);
    let (exact, rounded) =
        (exact.as_host_weight(name, None).decode(), rounded.as_host_weight(name, None).decode());
    let largest = exact.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    for (a, b) in exact.iter().zip(&rounded) {
        assert!((a - b).abs() <= a.abs() / 15.9 + largest / 448.0, "{a} became {b}");
    }
    assert_eq!(quantized.tensor("model.embed_tokens.weight", &[288, 64]).unwrap().dtype, DType::F32);

    let golden = Golden { prompt: (10..30).collect(), greedy: vec![40, 41], logits: Vec::new() };
    let (exact, rounded) = (run(&plain, cpu(), &golden), run(&quantized, cpu(), &golden));
    let errors = exact.iter().flatten().zip(rounded.iter().flatten()).map(|(a, b)| (a - b).abs());
    let mean = errors.sum::<f32>() / exact.iter().flatten().count() as f32;
    assert!(mean > 0.0 && mean < 0.3, "{mean}");
}
