//! A battery of broken models: each is refused with its own kind of problem, all problems at once, and none with a panic
//! (BR-47 to BR-51 and their neighbours). Loading refuses the same ones, before there is a device.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod gguf;
mod gguf_split;
mod notes;
mod quantized;
mod settings;
mod tensors;
mod texts;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};

use quire_kernels::DType;
use quire_models::check::{CheckOptions, CheckReport, Depth, Severity, check, load};
use quire_models::testing::{TinyModel, write_safetensors};
use quire_models::{Checkpoint, LoadOptions, ModelRegistry};
use serde_json::{Value, json};
use tempfile::TempDir;

const SHARD: &str = "model-00002-of-00003.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// A sound folder in three shards.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    TinyModel { num_shards: 3, ..TinyModel::qwen2() }.write_folder(folder.path()).unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

/// A sound folder of one file.
fn single() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::qwen2().write_folder(folder.path()).unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

fn report_of(path: &Path, depth: Depth) -> CheckReport {
    let options = CheckOptions { depth, ..CheckOptions::default() };
    check(path, &options, &ModelRegistry::default())
}

/// Checks that a model is refused with a problem of this kind whose message says all of `says`, by loading too.
#[track_caller]
fn refused(path: &Path, kind: &str, says: &[&str]) {
    let report = report_of(path, Depth::Full);
    let of_kind: Vec<_> = report.problems().filter(|problem| problem.kind == kind).collect();
    let found = of_kind.iter().any(|problem| says.iter().all(|part| problem.message.contains(part)));
    assert!(found, "{kind} {says:?} is not in {:#?}", report.findings);
    let error = load(
        path,
        &CheckOptions { depth: Depth::Full, ..CheckOptions::default() },
        &ModelRegistry::default(),
    );
    let error = error.map(drop).expect_err("loading refuses what a check does");
    let chain = common::chain(&error);
    assert!(says.iter().all(|part| chain.contains(part)), "{says:?} is not in {chain}");
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// A folder whose `config.json` has one field changed.
fn with_config(field: &str, value: Value) -> (TempDir, PathBuf) {
    let (folder, path) = single();
    edit(&path.join("config.json"), |config| config[field] = value);
    (folder, path)
}

/// A folder whose one file is what `change` makes of its bytes.
fn with_bytes(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> (TempDir, PathBuf) {
    let (folder, path) = single();
    let bytes = fs::read(path.join(WEIGHTS)).unwrap();
    fs::write(path.join(WEIGHTS), change(bytes)).unwrap();
    (folder, path)
}

type Stored = Vec<(String, DType, Vec<usize>, Vec<u8>)>;

/// A folder whose tensors are what `change` makes of them.
fn with_tensors(change: impl FnOnce(&mut Stored)) -> (TempDir, PathBuf) {
    let (folder, path) = single();
    let checkpoint = Checkpoint::open(&path, &LoadOptions::default()).unwrap();
    let read = |spec: &quire_models::TensorSpec| {
        let tensor = checkpoint.tensor(&spec.name, &spec.shape).unwrap();
        (spec.name.clone(), tensor.dtype, tensor.shape, tensor.bytes.to_vec())
    };
    let mut tensors: Stored = checkpoint.stored().unwrap().iter().map(read).collect();
    drop(checkpoint);
    change(&mut tensors);
    write_safetensors(&path.join(WEIGHTS), &tensors).unwrap();
    (folder, path)
}

fn tensor<'a>(tensors: &'a mut Stored, name: &str) -> &'a mut (String, DType, Vec<usize>, Vec<u8>) {
    tensors.iter_mut().find(|(given, ..)| given == name).expect("the model has such a tensor")
}

/// A file whose header is `header`, with so many bytes behind it.
fn raw(header: &str, num_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + num_bytes, 0);
    file
}

#[test]
fn a_sound_model_has_no_problems() {
    for (_folder, path) in [folder(), single()] {
        for depth in [Depth::Headers, Depth::Samples, Depth::Full] {
            let report = report_of(&path, depth);
            assert!(report.is_ok(), "{:#?}", report.findings);
            assert_eq!(report.architecture.as_deref(), Some("Qwen2ForCausalLM"));
            let all: u64 = report.weights.as_ref().unwrap().num_bytes;
            match depth {
                Depth::Headers => assert_eq!(report.scan.num_bytes, 0),
                Depth::Samples => assert!(report.scan.num_bytes <= all),
                Depth::Full => assert_eq!(report.scan.num_bytes, all),
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    TinyModel::llama().write_gguf(&path).unwrap();
    let report = report_of(&path, Depth::Full);
    assert!(report.is_ok(), "{:#?}", report.findings);
    assert_eq!(report.files.len(), 1);
}

#[test]
fn every_problem_is_in_one_report() {
    let (_f, path) = folder();
    fs::remove_file(path.join(SHARD)).unwrap();
    edit(&path.join("tokenizer_config.json"), |config| config["bos_token"] = json!("<nothing>"));
    fs::write(path.join("generation_config.json"), r#"{"eos_token_id": 5000}"#).unwrap();
    let report = report_of(&path, Depth::Full);
    let kinds: Vec<_> = report.problems().map(|problem| problem.kind).collect();
    for kind in ["missing-shard", "special-token", "configuration"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    // The tensors of the shard that is missing are not told one by one as well.
    assert!(!kinds.contains(&"missing-tensor"), "{kinds:?}");
    let shard = report.problems().find(|problem| problem.kind == "missing-shard").unwrap();
    assert!(shard.file.ends_with(INDEX) && shard.tensor.is_some());
    let error = load(&path, &CheckOptions::default(), &ModelRegistry::default()).unwrap_err().to_string();
    assert!(error.contains("problems:"), "{error}");
}

/// The problems of a report whose message says `says`.
#[track_caller]
fn assert_one(report: &CheckReport, says: &str) {
    let found = report.problems().filter(|problem| problem.message.contains(says)).count();
    assert_eq!(found, 1, "{says:?} in {:#?}", report.findings);
}

#[test]
fn files_are_examined_one_by_one_and_fields_too() {
    let (_f, path) = single();
    edit(&path.join("config.json"), |config| {
        for (field, value) in [
            ("num_hidden_layers", json!("2")),
            ("rope_theta", json!(-3)),
            ("rms_norm_eps", json!(-1.0)),
            ("hidden_act", json!("softplus")),
            ("eos_token_id", json!(5000)),
            ("rope_scaling", json!({"rope_type": "llama3", "factor": "8", "high_freq_factor": 4.0})),
            ("quantization_config", json!({"quant_method": "gptq", "bits": 3, "group_size": 0})),
        ] {
            config[field] = value;
        }
    });
    fs::write(path.join("generation_config.json"), r#"{"eos_token_id": "x", "temperature": "hot"}"#).unwrap();
    fs::write(path.join("tokenizer.json"), "[1,2").unwrap();
    edit(&path.join("tokenizer_config.json"), |config| {
        (config["bos_token"], config["eos_token"]) = (json!(1), json!(2));
        config["chat_template"] = json!(5);
    });
    fs::create_dir(path.join("chat_template.jinja")).unwrap();
    fs::write(path.join(WEIGHTS), [0; 3]).unwrap();
    let report = report_of(&path, Depth::Full);
    let all = [
        "num_hidden_layers: expected a whole number",
        "rope_theta: expected a number above 1, given -3",
        "rms_norm_eps",
        "hidden_act = softplus",
        "eos_token_id: 5000 is not in the vocabulary",
        "rope_scaling.factor: expected a number, given \"8\"",
        "rope_scaling.low_freq_factor: missing",
        "bits: 3 is not supported",
        "group_size: 0 is not supported",
        "eos_token_id: expected a token id or a list of them, given \"x\"",
        "tokenizer.json is not valid json",
        "bos_token: expected a string",
        "eos_token: expected a string",
        "chat_template to be a text",
        "chat_template.jinja is a folder",
        "3 bytes, expected at least 8",
    ];
    all.iter().for_each(|says| assert_one(&report, says));
    assert_eq!(report.problems().count(), all.len(), "{:#?}", report.findings);
}

#[test]
fn a_setting_that_is_wrong_hides_nothing_of_the_tensors() {
    let (_f, path) = with_tensors(|tensors| {
        tensors.retain(|(name, ..)| name != "model.norm.weight");
        tensor(tensors, "model.layers.0.mlp.up_proj.weight").2 = vec![64, 128];
    });
    fs::write(path.join("generation_config.json"), r#"{"eos_token_id": "x"}"#).unwrap();
    fs::remove_file(path.join("tokenizer.json")).unwrap();
    let report = report_of(&path, Depth::Full);
    for says in
        ["model.norm.weight is missing", "given [64, 128]", "eos_token_id", "tokenizer.json is not there"]
    {
        assert_one(&report, says);
    }
    assert_eq!(report.problems().count(), 4, "{:#?}", report.findings);
}

#[test]
fn without_weights_the_texts_are_looked_at_all_the_same() {
    let (_f, path) = single();
    fs::remove_file(path.join(WEIGHTS)).unwrap();
    fs::write(path.join("tokenizer.json"), "{}").unwrap();
    fs::write(path.join("generation_config.json"), "[").unwrap();
    let report = report_of(&path, Depth::Full);
    let mut kinds: Vec<_> = report.problems().map(|problem| problem.kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["invalid-json", "no-weights", "tokenizer"]);
}

#[test]
fn a_gguf_file_is_looked_at_field_by_field() {
    use quire_models::testing::MetadataValue::{F32, String, U32};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = TinyModel::llama().to_gguf();
    file.replace("llama.rope.freq_base", F32(-3.0));
    file.replace("llama.attention.layer_norm_rms_epsilon", F32(-1.0));
    file.replace("llama.context_length", U32(u32::MAX));
    file.replace("tokenizer.ggml.pre", String("unheard-of".to_owned()));
    fs::write(&path, file.to_bytes()).unwrap();
    let report = report_of(&path, Depth::Full);
    for says in ["rope.freq_base", "rms_epsilon", "llama.context_length", "unheard-of"] {
        assert_one(&report, says);
    }
}

#[test]
fn what_is_not_used_is_listed_and_what_is_harmless_is_named() {
    let (_f, path) = with_tensors(|tensors| {
        let table = |name: &str| (name.to_owned(), DType::F32, vec![8], vec![0; 32]);
        tensors.push(table("model.layers.0.self_attn.rotary_emb.inv_freq"));
        tensors.push(table("model.layers.0.extra.weight"));
    });
    let report = report_of(&path, Depth::Samples);
    assert!(report.is_ok());
    let note = |kind: &str| report.findings.iter().find(|note| note.kind == kind).expect("a note");
    let harmless = note("harmless-tensor");
    assert_eq!((harmless.severity, harmless.num_bytes), (Severity::Note, Some(32)));
    assert!(harmless.message.contains("rotary frequencies"));
    assert_eq!(note("unused-tensor").tensor.as_deref(), Some("model.layers.0.extra.weight"));
}
