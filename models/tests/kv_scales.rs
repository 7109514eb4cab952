//! Scales of an 8-bit KV cache: where they are found, and what they are good for.

mod common;

use std::path::Path;

use common::assert_says;
use common::runner::{LIMITS, Runner};
use quire_kernels::{DType, Kernels, KvScales, quant, reference};
use quire_models::testing::{TinyModel, write_safetensors};
use quire_models::{Checkpoint, Error, LoadOptions};
use tempfile::TempDir;

/// How much larger the values are than those of the tiny model: far beyond what 8-bit floats of 4 exponent bits hold.
const FACTOR: f32 = 8192.0;

type Tensor = (String, DType, Vec<usize>, Vec<u8>);

/// A tiny Llama with these tensors beside its own, which `change` has been at.
fn model(extra: &[(&str, &[usize], &[f32])], change: impl Fn(&str, &mut [f32])) -> (TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    let mut tensors = tensors_of(folder.path());
    for (name, dtype, _, bytes) in &mut tensors {
        let mut values = quant::decode(*dtype, bytes);
        change(name, &mut values);
        *bytes = quant::encode(*dtype, &values);
    }
    tensors.extend(extra.iter().map(|(name, shape, values)| {
        ((*name).to_owned(), DType::F32, shape.to_vec(), quant::encode(DType::F32, values))
    }));
    write_safetensors(&folder.path().join("model.safetensors"), &tensors).unwrap();
    let checkpoint = Checkpoint::open(folder.path(), &LoadOptions::default()).unwrap();
    (folder, checkpoint)
}

fn tensors_of(folder: &Path) -> Vec<Tensor> {
    let checkpoint = Checkpoint::open(folder, &LoadOptions::default()).unwrap();
    let read = |spec: &quire_models::TensorSpec| {
        let tensor = checkpoint.tensor(&spec.name, &spec.shape).unwrap();
        (spec.name.clone(), tensor.dtype, tensor.shape, tensor.bytes.to_vec())
    };
    checkpoint.stored().unwrap().iter().map(read).collect()
}

fn scales(extra: &[(&str, &[usize], &[f32])]) -> Result<Vec<KvScales>, Error> {
    model(extra, |_, _| ()).1.kv_scales()
}

const ATTENTION: [&str; 2] = ["model.layers.0.self_attn", "model.layers.1.self_attn"];

#[test]
fn scales_are_found_under_all_their_names() {
    assert_eq!(scales(&[]).unwrap(), []);
    let one = [KvScales { k: 0.5, v: 2.0 }, KvScales::ONE];
    for [k, v] in [
        ["k_scale", "v_scale"],
        ["attn.k_scale", "attn.v_scale"],
        ["k_proj.k_scale", "v_proj.v_scale"],
        ["k_proj.output_scale", "v_proj.output_scale"],
    ] {
        let [k, v] = [k, v].map(|end| format!("{}.{end}", ATTENTION[0]));
        for shape in [&[][..], &[1], &[1, 1]] {
            assert_eq!(scales(&[(&k, shape, &[0.5]), (&v, shape, &[2.0])]).unwrap(), one, "{k}");
        }
        assert_eq!(scales(&[(&v, &[], &[2.0])]).unwrap()[0], KvScales { k: 1.0, v: 2.0 });
    }
    let shared = ATTENTION.map(|attention| format!("{attention}.kv_scale"));
    let [first, second] = [(&*shared[0], &[][..], &[0.5][..]), (&*shared[1], &[][..], &[-1.0][..])];
    assert_eq!(scales(&[first, second]).unwrap(), [KvScales { k: 0.5, v: 0.5 }, KvScales::ONE]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized/fp8-static");
    let golden = Checkpoint::open(&golden, &LoadOptions::default()).unwrap();
    assert_eq!(golden.kv_scales().unwrap(), [KvScales { k: 0.25, v: 0.5 }]);
}

#[test]
fn scales_that_are_no_single_number_are_named() {
    let name = "model.layers.1.self_attn.k_scale";
    assert_says(&scales(&[(name, &[2], &[1.0, 2.0])]).unwrap_err(), &[name, "expected shape [1], given [2]"]);
    assert_says(&scales(&[(name, &[], &[f32::NAN])]).unwrap_err(), &[name, "NaN"]);
}

/// The largest difference between the logits of a cache and those of one in float32.
fn error(checkpoint: &Checkpoint, kernels: &Kernels, cache: (DType, &[KvScales])) -> f32 {
    let run = |cache| {
        let mut runner = Runner::with_cache(checkpoint, kernels.clone(), LIMITS, cache);
        let prompt: Vec<u32> = (10..50).collect();
        let mut logits = runner.step(&[(0, &prompt[..33])]);
        logits.extend(runner.step(&[(0, &prompt[33..])]));
        logits.extend(runner.step(&[(0, &[60])]));
        logits
    };
    let (exact, given) = (run((DType::F32, &[])), run(cache));
    let pairs = exact.iter().flatten().zip(given.iter().flatten());
    pairs.fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}

#[test]
fn values_beyond_8_bit_floats_need_their_scales() {
    let name = |layer: usize, end: &str| format!("{}.{end}", ATTENTION[layer]);
    let names = [name(0, "k_scale"), name(0, "v_scale"), name(1, "k_scale"), name(1, "v_scale")];
    // Large values, small keys; what follows is made up for, so that the model is the tiny one.
    let (k_scale, v_scale) = (1.0 / (64.0 * FACTOR), FACTOR / 64.0);
    let values = [[k_scale], [v_scale], [k_scale], [v_scale]];
    let extra: Vec<_> =
        names.iter().zip(&values).map(|(name, value)| (&**name, &[][..], &value[..])).collect();
    let (_folder, checkpoint) = model(&extra, |name, values| {
        let factor = match name.rsplit('.').nth(1) {
            Some("v_proj") => FACTOR,
            Some("o_proj" | "k_proj") => 1.0 / FACTOR,
            Some("q_proj") => FACTOR,
            _ => 1.0,
        };
        values.iter_mut().for_each(|value| *value *= factor);
    });
    let scales = checkpoint.kv_scales().unwrap();
    assert_eq!(scales, [KvScales { k: k_scale, v: v_scale }; 2]);
    let cpu = quire_kernels_cpu::CpuConfig { threads: Some(2), isa: None };
    for kernels in [quire_kernels_cpu::kernels(cpu).unwrap(), reference::kernels()] {
        let with = error(&checkpoint, &kernels, (DType::F8E4M3, &scales));
        let without = error(&checkpoint, &kernels, (DType::F8E4M3, &[]));
        assert!(with < 1.0 && without > 4.0 * with, "{with} with scales, {without} without");
        // These reach further, with fewer digits.
        let with = error(&checkpoint, &kernels, (DType::F8E5M2, &scales));
        assert!(with < 2.0, "{with} in e5m2");
    }
}
