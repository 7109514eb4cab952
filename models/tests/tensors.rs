//! Tensors: one set of names and values, whatever they are stored in.

mod common;

use quire_kernels::{DType, quant};
use quire_models::testing::{MetadataValue, TinyModel};
use quire_models::{
    Checkpoint, HostTensor, LoadFormat, LoadOptions, ModelRegistry, Result, TensorSpec, WeightDType,
};

fn specs(checkpoint: &Checkpoint) -> Vec<TensorSpec> {
    let registry = ModelRegistry::default();
    registry.find(&checkpoint.config().architecture).unwrap().tensors(checkpoint).unwrap()
}

fn values(tensor: &HostTensor) -> Vec<f32> {
    quant::decode(tensor.dtype, &tensor.bytes)
}

/// Every tensor of two checkpoints, in turn.
fn each_pair(first: &Checkpoint, second: &Checkpoint, check: impl Fn(&str, HostTensor, HostTensor)) {
    for TensorSpec { name, shape } in specs(first) {
        check(&name, first.tensor(&name, &shape).unwrap(), second.tensor(&name, &shape).unwrap());
    }
}

fn open(path: &std::path::Path, dtype: Option<WeightDType>) -> Checkpoint {
    Checkpoint::open(path, &LoadOptions { dtype, ..LoadOptions::default() }).unwrap()
}

#[test]
fn a_folder_and_a_gguf_file_of_one_model_hold_the_same_values() {
    for model in [TinyModel::llama(), TinyModel::qwen2()] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let model = TinyModel { dtype, ..model.clone() };
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.gguf");
            model.write_folder(folder.path()).unwrap();
            model.write_gguf(&path).unwrap();
            each_pair(&open(folder.path(), None), &open(&path, None), |name, first, second| {
                assert_eq!((first.dtype, &first.shape), (second.dtype, &second.shape), "{name}");
                assert_eq!(*first.bytes, *second.bytes, "{name}");
            });
        }
    }
}

#[test]
fn quantized_rows_stay_quantized_and_move_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = TinyModel { dtype: DType::Q4_1, ..TinyModel::llama() };
    model.write_gguf(&path).unwrap();
    // The folder holds what the quantized values are worth.
    let dense = tempfile::tempdir().unwrap();
    TinyModel { dtype: DType::F32, ..model }.write_folder(dense.path()).unwrap();
    let (quantized, as_float) = (open(&path, None), open(&path, Some(WeightDType::Float32)));
    each_pair(&quantized, &as_float, |name, stored, converted| {
        let is_matrix = stored.shape.len() == 2;
        assert_eq!(stored.dtype, if is_matrix { DType::Q4_1 } else { DType::F32 }, "{name}");
        assert_eq!(converted.dtype, DType::F32);
        assert_eq!(values(&stored), values(&converted), "{name}");
    });
    each_pair(&as_float, &open(dense.path(), None), |name, quantized, exact| {
        let worst =
            values(&quantized).iter().zip(values(&exact)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 0.06, "{name}: off by {worst}, a row is in the wrong place");
    });
}

#[test]
fn an_expert_is_its_share_of_the_tensor_of_all() {
    check_experts(false);
}

#[test]
fn an_expert_of_an_older_file_is_a_tensor() {
    check_experts(true);
}

fn check_experts(are_apart: bool) {
    const EXPERTS: usize = 3;
    let model = TinyModel { dtype: DType::Q8_0, num_layers: 1, ..TinyModel::llama() };
    let (hidden, intermediate) = (model.hidden_size, model.intermediate_size);
    let mut file = model.to_gguf();
    file.set("llama.expert_count", MetadataValue::U32(EXPERTS as u32));
    file.set("llama.expert_used_count", MetadataValue::U32(2));
    file.add("blk.0.ffn_gate_inp.weight", DType::F32, &[EXPERTS, hidden], vec![0; 4 * EXPERTS * hidden]);
    let expert = |expert: usize| {
        let value = |at: usize| (expert * 100 + at % 90) as f32 - 150.0;
        quant::encode(DType::Q8_0, &(0..hidden * intermediate).map(value).collect::<Vec<_>>())
    };
    if are_apart {
        for at in 0..EXPERTS {
            file.add(format!("blk.0.ffn_up.{at}.weight"), DType::Q8_0, &[intermediate, hidden], expert(at));
        }
    } else {
        let all = (0..EXPERTS).flat_map(expert).collect();
        file.add("blk.0.ffn_up_exps.weight", DType::Q8_0, &[EXPERTS, intermediate, hidden], all);
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.to_bytes()).unwrap();
    let checkpoint = open(&path, None);
    assert_eq!(checkpoint.config().architecture, "MixtralForCausalLM");
    assert_eq!(checkpoint.config().moe.as_ref().unwrap().intermediate_size, intermediate);
    let name = |expert| format!("model.layers.0.block_sparse_moe.experts.{expert}.w3.weight");
    for at in 0..EXPERTS {
        let tensor = checkpoint.tensor(&name(at), &[intermediate, hidden]).unwrap();
        assert_eq!((tensor.dtype, &*tensor.bytes), (DType::Q8_0, &*expert(at)));
    }
    let error = checkpoint.tensor(&name(EXPERTS), &[intermediate, hidden]).unwrap_err();
    common::assert_says(&error, &["tensor blk.0.ffn_up_exps.weight[3] is missing"]);
}

#[test]
fn dtypes_are_converted_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::qwen2().write_folder(folder.path()).unwrap();
    let stored = open(folder.path(), None);
    for (wanted, dtype) in [(WeightDType::BFloat16, DType::BF16), (WeightDType::Float16, DType::F16)] {
        let converted = open(folder.path(), Some(wanted));
        each_pair(&stored, &converted, |name, exact, rounded| {
            let is_matrix = exact.shape.len() == 2;
            assert_eq!(rounded.dtype, if is_matrix { dtype } else { DType::F32 }, "{name}");
            assert_eq!(*rounded.bytes, quant::encode(rounded.dtype, &values(&exact)), "{name}");
        });
        let summary = converted.check(&specs(&converted)).unwrap();
        let vectors = summary.by_dtype[&DType::F32].1;
        assert_eq!(summary.num_bytes, summary.num_parameters * 2 + vectors / 2);
    }
}

#[test]
fn large_tensors_are_converted_in_parallel_and_in_order() {
    let model = TinyModel { vocab_size: 20_011, ..TinyModel::llama() };
    let folder = tempfile::tempdir().unwrap();
    model.write_folder(folder.path()).unwrap();
    let shape = [20_011, 64];
    let embedding = |dtype| open(folder.path(), dtype).tensor("model.embed_tokens.weight", &shape).unwrap();
    let expected = quant::encode(DType::BF16, &values(&embedding(None)));
    assert_eq!(*embedding(Some(WeightDType::BFloat16)).bytes, expected);
}

fn dummy(path: &std::path::Path, seed: u64, dtype: Option<WeightDType>) -> Result<Checkpoint> {
    Checkpoint::open(
        path,
        &LoadOptions { load_format: LoadFormat::Dummy, dtype, seed, ..LoadOptions::default() },
    )
}

#[test]
fn a_file_has_weights_of_its_own_and_is_not_taken_for_random_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    TinyModel::llama().write_gguf(&path).unwrap();
    let message = dummy(&path, 7, None).unwrap_err().to_string();
    assert!(
        message.ends_with("load_format dummy makes random weights from the config.json of a folder"),
        "{message}"
    );
}

#[test]
fn dummy_weights_need_a_config_alone_and_follow_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let config = TinyModel::qwen2().with_config("torch_dtype", "bfloat16").config_json();
    std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    let first = dummy(folder.path(), 7, None).unwrap();
    let summary = first.check(&specs(&first)).unwrap();
    assert_eq!(summary.by_dtype[&DType::BF16].0, 2 + 2 * 7);
    each_pair(&first, &dummy(folder.path(), 7, None).unwrap(), |name, first, second| {
        assert_eq!(*first.bytes, *second.bytes, "{name}");
    });
    let (shape, name) = ([288, 64], "lm_head.weight");
    let head = first.tensor(name, &shape).unwrap();
    assert_eq!(head.dtype, DType::BF16);
    let other = dummy(folder.path(), 8, None).unwrap().tensor(name, &shape).unwrap();
    assert_ne!(*head.bytes, *other.bytes);
    let numbers = values(&head);
    let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
    assert!(mean.abs() < 1e-3 && numbers.iter().all(|number| number.abs() <= 0.0502), "mean {mean}");
    let norm = first.vector("model.norm.weight", 64).unwrap();
    assert!(norm.iter().all(|weight| (0.89..1.11).contains(weight)));
    let exact = dummy(folder.path(), 7, Some(WeightDType::Float32)).unwrap();
    assert_eq!(exact.tensor(name, &shape).unwrap().dtype, DType::F32);
}
