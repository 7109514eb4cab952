//! The models' arithmetic: against a second writing of it, and against real logits.

mod common;

use common::naive::Naive;
use common::runner::{LIMITS, Runner};
use common::{cached_model, golden};
use quire_kernels::testing::deferred;
use quire_kernels::{DType, Kernels, reference};
use quire_models::testing::TinyModel;
use quire_models::{
    Checkpoint, DecoderSpec, Error, LinearModule, LoadOptions, Loader, Model, ModelRegistry, WeightDType,
};
use serde_json::json;

fn checkpoint(model: &TinyModel) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    match model.dtype.is_quantized() {
        true => model.write_gguf(&path).unwrap(),
        false => model.write_folder(folder.path()).unwrap(),
    }
    let path = if model.dtype.is_quantized() { &path } else { folder.path() };
    // The files stay mapped after the folder is gone.
    Checkpoint::open(path, &LoadOptions::default()).unwrap()
}

fn tokens(num_tokens: usize, seed: u32) -> Vec<u32> {
    (0..num_tokens as u32).map(|at| (at * at * 7 + at * 13 + seed * 31) % 288).collect()
}

fn worst(given: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(given.len(), expected.len());
    let pairs = given.iter().flatten().zip(expected.iter().flatten());
    pairs.map(|(given, expected)| (f64::from(*given) - expected).abs()).fold(0.0, f64::max)
}

/// Checks one prompt against the second writing.
fn check(model: &TinyModel) {
    let checkpoint = checkpoint(model);
    let tokens = tokens(40, 1);
    let expected = Naive::new(&checkpoint).logits(&tokens);
    let given = Runner::new(&checkpoint, reference::kernels()).step(&[(0, &tokens)]);
    let worst = worst(&given, &expected);
    assert!(worst < 2e-4, "{} {}: logits are off by {worst}", model.architecture, model.dtype);
}

#[test]
fn logits_equal_a_second_writing_of_the_model() {
    check(&TinyModel::llama());
    check(&TinyModel { tied: false, num_kv_heads: 1, ..TinyModel::llama() });
    check(&TinyModel { dtype: DType::BF16, head_dim: 32, ..TinyModel::llama() });
    check(&TinyModel { dtype: DType::Q4_1, ..TinyModel::llama() });
    check(&TinyModel { dtype: DType::Q8_0, ..TinyModel::qwen2() });
    check(&TinyModel::qwen2());
}

#[test]
fn layers_with_a_window_see_no_further() {
    let model = TinyModel { num_layers: 3, ..TinyModel::qwen2() }
        .with_config("sliding_window", 8)
        .with_config("layer_types", json!(["sliding_attention", "full_attention", "sliding_attention"]));
    check(&model);
}

#[test]
fn chunks_and_neighbours_change_nothing() {
    let checkpoint = checkpoint(&TinyModel::llama());
    let (first, second) = (tokens(30, 1), tokens(21, 2));
    let lone = |tokens: &[u32]| Runner::new(&checkpoint, reference::kernels()).step(&[(0, tokens)]);
    let (lone_first, lone_second) = (lone(&first), lone(&second));

    let mut runner = Runner::new(&checkpoint, reference::kernels());
    let (mut given_first, mut given_second) = (vec![], vec![]);
    // A chunk of the one beside a single token of the other.
    let mut chunks = first.chunks(7);
    for token in second.chunks(1) {
        match chunks.next() {
            Some(chunk) => {
                let mut logits = runner.step(&[(2, chunk), (1, token)]);
                given_second.extend(logits.split_off(chunk.len()));
                given_first.extend(logits);
            }
            None => given_second.extend(runner.step(&[(1, token)])),
        }
    }
    assert_eq!(given_first, lone_first);
    assert_eq!(given_second, lone_second);
}

#[test]
fn an_asynchronous_device_gives_the_same_logits() {
    for model in [TinyModel::llama(), TinyModel::qwen2()] {
        let checkpoint = checkpoint(&model);
        let (prompt, more) = (tokens(20, 4), tokens(9, 5));
        let run = |kernels: Kernels| {
            let mut runner = Runner::new(&checkpoint, kernels);
            [runner.step(&[(0, &prompt), (1, &more)]), runner.step(&[(1, &prompt[..3]), (0, &more[..1])])]
        };
        assert_eq!(run(deferred(&reference::kernels())), run(reference::kernels()));
    }
}

#[test]
fn the_scratch_plan_holds_and_is_tight() {
    for model in [TinyModel::llama(), TinyModel { intermediate_size: 16, ..TinyModel::qwen2() }] {
        let checkpoint = checkpoint(&model);
        let kernels = reference::kernels();
        let registry = ModelRegistry::default();
        let architecture = registry.find(&checkpoint.config().architecture).unwrap();
        let planned = architecture.scratch_bytes(checkpoint.config(), &kernels, &LIMITS);
        let mut runner = Runner::new(&checkpoint, kernels);
        runner.step(&[(0, &tokens(LIMITS.max_num_batched_tokens, 3))]);
        let used = runner.peak_scratch_bytes();
        assert!(
            used <= planned && planned <= used + used / 8 + 4096,
            "{used} bytes used of {planned} planned"
        );
    }
}

#[test]
fn a_tied_head_is_held_once() {
    let load = |tied| checkpoint(&TinyModel { tied, ..TinyModel::llama() });
    let num_bytes =
        |checkpoint: &Checkpoint| Runner::new(checkpoint, reference::kernels()).model().num_bytes();
    let untied = load(false);
    let kernels = reference::kernels();
    let loader = Loader::new(&untied, &kernels, 16);
    let head = LinearModule { name: "lm_head".to_owned(), out_features: 288, has_bias: false };
    let head_bytes = loader.linear(&head, 64).unwrap().num_bytes();
    assert_eq!(num_bytes(&untied) - num_bytes(&load(true)), head_bytes);
}

#[test]
fn architectures_are_found_by_name_and_strangers_add_theirs() {
    let mut registry = ModelRegistry::default();
    let error = registry.find("MambaForCausalLM").err().expect("nobody registered it");
    assert_eq!(
        error.to_string(),
        "architecture MambaForCausalLM is not known; known are Gemma2ForCausalLM, Gemma3ForCausalLM, \
         GraniteForCausalLM, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Olmo2ForCausalLM, \
         Phi3ForCausalLM, Qwen2ForCausalLM, Qwen2MoeForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM"
    );
    registry.register("MineForCausalLM", |loader: &Loader<'_>| -> Result<Box<dyn Model>, Error> {
        Ok(Box::new(quire_models::CausalLm::load(loader, &DecoderSpec::default())?))
    });
    let model = TinyModel::llama().with_config("architectures", json!(["MineForCausalLM"]));
    let checkpoint = checkpoint(&model);
    let architecture = registry.find(&checkpoint.config().architecture).unwrap();
    let summary = checkpoint.check(&architecture.tensors(&checkpoint).unwrap()).unwrap();
    assert!(summary.num_parameters > 0 && summary.unused.is_empty());
    assert!(architecture.build(&Loader::new(&checkpoint, &reference::kernels(), 16)).is_ok());
}

#[test]
fn another_activation_is_refused() {
    let checkpoint = checkpoint(&TinyModel::llama().with_config("hidden_act", "gelu"));
    let kernels = reference::kernels();
    let error =
        quire_models::CausalLm::load(&Loader::new(&checkpoint, &kernels, 16), &DecoderSpec::default())
            .err()
            .unwrap();
    assert_eq!(
        error.to_string(),
        "LlamaForCausalLM: hidden_act = gelu is not supported, expected silu or gelu_pytorch_tanh"
    );
}

/// The shortest golden prompts in float32, on the reference backend.
fn check_golden(alias: &str, file: &str) {
    let Some(path) = cached_model(alias) else { return };
    let options = LoadOptions { dtype: Some(WeightDType::Float32), ..LoadOptions::default() };
    let checkpoint = Checkpoint::open(&path, &options).unwrap();
    let mut runner = Runner::new(&checkpoint, reference::kernels());
    let golden = golden(file);
    let case = golden["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .min_by_key(|case| case["token_ids"].as_array().unwrap().len());
    let case = case.expect("the file has prompts");
    let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
    let logits = runner.step(&[(0, &ids)]).pop().unwrap();
    let expected: Vec<(usize, f32)> = serde_json::from_value(case["last_logits_top20"].clone()).unwrap();
    for (id, expected) in expected {
        assert!(
            (logits[id] - expected).abs() < 1e-3,
            "{}: token {id}: {} not {expected}",
            case["name"],
            logits[id]
        );
    }
}

#[test]
fn smollm2_gives_the_golden_logits() {
    check_golden("smollm2-135m", "smollm2-135m.json");
}

#[test]
fn qwen2_5_gives_the_golden_logits() {
    check_golden("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b.json");
}
