//! A battery of broken models: each is refused with its own kind of problem, all problems at once, and none with a panic
//! (BR-47 to BR-51 and their neighbours). Loading refuses the same ones, before there is a device.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use quire_kernels::DType;
use quire_models::check::{CheckOptions, CheckReport, Depth, Severity, check, load};
use quire_models::testing::{GgufWriter, MetadataValue, TinyModel, write_safetensors};
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
fn br48_files_that_are_not_whole() {
    let (_f, path) = folder();
    fs::remove_file(path.join(SHARD)).unwrap();
    refused(&path, "missing-shard", &[SHARD, "is missing"]);

    let (_f, path) = with_bytes(|bytes| bytes[..bytes.len() - 1024].to_vec());
    refused(&path, "broken-file", &["bytes missing"]);
    let (_f, path) = with_bytes(|bytes| bytes[..200].to_vec());
    refused(&path, "broken-file", &["header length"]);
    let (_f, path) = with_bytes(|_| Vec::new());
    refused(&path, "broken-file", &["0 bytes, expected at least 8"]);
    let (_f, path) = with_bytes(|_| vec![1, 2, 3]);
    refused(&path, "broken-file", &["3 bytes, expected at least 8"]);
    let (_f, path) = with_bytes(|_| [&(1_u64 << 40).to_le_bytes()[..], &[0; 100]].concat());
    refused(&path, "broken-file", &["header length 1099511627776 is out of range"]);
    let (_f, path) =
        with_bytes(|_| b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec());
    refused(&path, "broken-file", &["git lfs pull"]);
    let (_f, path) = with_bytes(|_| raw("{\"a\":", 0));
    refused(&path, "broken-file", &["header is not valid"]);
}

#[test]
fn br48_headers_that_lie() {
    let entry =
        |dtype, shape, offsets| format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#);
    for (header, num_bytes, says) in [
        (format!(r#"{{"a":{}}}"#, entry("F32", "[2]", "[0,8]")), 4, "4 bytes missing"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[2]", "[8,0]")), 8, "not a range"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[3]", "[0,8]")), 8, "takes 12 bytes, its offsets give 8"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[4611686018427387904,4]", "[0,8]")), 8, "its offsets give 8"),
        (format!(r#"{{"a":{0},"b":{0}}}"#, entry("F32", "[2]", "[0,8]")), 8, "tensors a and b overlap"),
    ] {
        let (_f, path) = with_bytes(|_| raw(&header, num_bytes));
        refused(&path, "broken-file", &[says]);
    }
}

#[test]
fn br48_an_index_that_does_not_fit() {
    let map = |path: &Path, change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        edit(&path.join(INDEX), |index| change(index["weight_map"].as_object_mut().unwrap()));
    };
    let (_f, path) = folder();
    map(&path, &|map| drop(map.insert("model.layers.9.mlp.up_proj.weight".to_owned(), SHARD.into())));
    refused(&path, "stale-index", &["model.layers.9.mlp.up_proj.weight", SHARD]);
    let (_f, path) = folder();
    map(&path, &|map| drop(map.insert("model.norm.weight".to_owned(), "../elsewhere.safetensors".into())));
    refused(&path, "broken-index", &["not a file name"]);
    let (_f, path) = folder();
    map(&path, &|map| map.clear());
    refused(&path, "broken-index", &["names no tensor"]);
    let (_f, path) = folder();
    fs::write(path.join(INDEX), "{").unwrap();
    refused(&path, "invalid-json", &[INDEX]);
    let (_f, path) = folder();
    fs::copy(path.join("model-00001-of-00003.safetensors"), path.join(SHARD)).unwrap();
    refused(&path, "tensor-twice", &["is in both"]);
}

#[test]
fn br47_a_head_that_is_nowhere() {
    let (_f, path) = with_tensors(|tensors| tensors.retain(|(name, ..)| name != "lm_head.weight"));
    refused(&path, "missing-tensor", &["lm_head.weight"]);
    let report = report_of(&path, Depth::Samples);
    assert_eq!(report.problems().count(), 1, "the rest is looked at, and is sound: {:#?}", report.findings);
}

#[test]
fn tensors_that_do_not_fit_the_configuration() {
    let down = "model.layers.1.mlp.down_proj.weight";
    let (_f, path) = with_tensors(|tensors| tensors.retain(|(name, ..)| name != down));
    refused(&path, "missing-tensor", &[down]);
    let (_f, path) = with_config("intermediate_size", json!(96));
    refused(&path, "tensor-shape", &["mlp.gate_proj.weight", "expected shape [96, 64], given [128, 64]"]);
    let (_f, path) = with_config("vocab_size", json!(300));
    refused(&path, "tensor-shape", &["model.embed_tokens.weight", "[300, 64]"]);
    let (_f, path) = with_config("num_hidden_layers", json!(3));
    refused(&path, "missing-tensor", &["model.layers.2.self_attn.q_proj.weight"]);
    let (_f, path) = with_tensors(|tensors| {
        let tensor = tensor(tensors, down);
        (tensor.1, tensor.3) = (DType::I64, vec![0; 8 * 64 * 128]);
    });
    refused(&path, "tensor-dtype", &[down, "i64"]);
    let (_f, path) = with_bytes(|bytes| {
        // A dtype that nobody knows, as long as the one that was there.
        let text = String::from_utf8_lossy(&bytes[8..]).find("\"F32\"").expect("a dtype") + 8;
        let mut bytes = bytes;
        bytes[text + 1..text + 4].copy_from_slice(b"C64");
        bytes
    });
    refused(&path, "tensor-dtype", &["C64"]);
}

#[test]
fn configurations_that_cannot_be() {
    for (field, value, kind, says) in [
        ("hidden_size", json!(0), "configuration", "hidden_size: expected 1 to"),
        ("hidden_size", json!("64"), "configuration", "hidden_size: expected a whole number"),
        ("hidden_size", Value::Null, "configuration", "hidden_size: missing"),
        ("num_hidden_layers", json!(1_000_000), "configuration", "num_hidden_layers: expected 1 to"),
        ("num_key_value_heads", json!(3), "configuration", "expected a multiple of num_key_value_heads = 3"),
        ("head_dim", json!(15), "configuration", "expected an even number"),
        ("rms_norm_eps", json!(-1.0), "configuration", "rms_norm_eps"),
        ("bos_token_id", json!(288), "configuration", "288 is not in the vocabulary"),
        ("eos_token_id", json!([2, 9999]), "configuration", "9999 is not in the vocabulary"),
        ("max_position_embeddings", json!(4_294_967_295_u32), "configuration", "max_position_embeddings"),
        (
            "architectures",
            json!(["MambaForCausalLM"]),
            "architecture",
            "MambaForCausalLM is not known; known are",
        ),
        ("hidden_act", json!("softplus"), "unsupported", "softplus"),
        ("quantization_config", json!({"quant_method": "bitsandbytes"}), "configuration", "bitsandbytes"),
        (
            "quantization_config",
            json!({"quant_method": "gptq", "bits": 2}),
            "configuration",
            "expected 4 or 8",
        ),
        ("rope_scaling", json!({"rope_type": "warp", "factor": 2.0}), "configuration", "warp"),
    ] {
        let (_f, path) = with_config(field, value);
        refused(&path, kind, &[says]);
    }
    let (_f, path) = single();
    fs::write(path.join("config.json"), "{\"hidden_size\": 64,").unwrap();
    refused(&path, "invalid-json", &["config.json"]);
    let (_f, path) = single();
    fs::write(path.join("generation_config.json"), r#"{"eos_token_id": [2, 5000]}"#).unwrap();
    refused(&path, "configuration", &["generation_config.json", "5000 is not in the vocabulary"]);
    let (_f, path) = single();
    fs::write(path.join("generation_config.json"), r#"{"temperature": "hot"}"#).unwrap();
    refused(&path, "configuration", &["temperature: expected a number"]);
}

#[test]
fn quantized_folders_with_parts_that_do_not_fit() {
    let golden =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized").join(name);
    let broken = |name: &str, from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).unwrap();
        let mut bytes = fs::read(golden(name).join(WEIGHTS)).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
        let mut changed = header.replacen(from, to, 1);
        assert_ne!(changed, header, "{from} is in the header");
        // What follows stays where it is.
        changed.push_str(&" ".repeat((len + 64).saturating_sub(changed.len())));
        let mut file = (changed.len() as u64).to_le_bytes().to_vec();
        file.extend(changed.bytes());
        file.extend(bytes.split_off(8 + len));
        fs::write(folder.path().join(WEIGHTS), file).unwrap();
        let path = folder.path().to_owned();
        (folder, path)
    };
    let module = "model.layers.0.self_attn.q_proj";
    for (name, part, kind) in [
        ("gptq", "scales", "missing-tensor"),
        ("gptq", "qzeros", "missing-tensor"),
        ("gptq", "qweight", "missing-tensor"),
        ("awq", "qzeros", "missing-tensor"),
        ("ct-w4a16", "weight_scale", "missing-tensor"),
        ("ct-w8a8", "weight_scale", "missing-tensor"),
    ] {
        let (_f, path) = broken(name, &format!("{module}.{part}\""), &format!("{module}.other_{part}\""));
        refused(&path, kind, &[module]);
    }
    // Groups of another size than the scales are for.
    let folder = tempfile::tempdir().unwrap();
    for file in [WEIGHTS, "config.json"] {
        fs::copy(golden("gptq").join(file), folder.path().join(file)).unwrap();
    }
    edit(&folder.path().join("config.json"), |config| {
        config["quantization_config"]["group_size"] = json!(16)
    });
    refused(folder.path(), "tensor-shape", &["scales", "expected shape [4, "]);
}

#[test]
fn what_quantizers_leave_beside_weights_is_said_once() {
    let note = |name: &str, kind: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized").join(name);
        let findings = report_of(&path, Depth::Headers).findings;
        findings.into_iter().filter(|note| note.kind == kind).map(|note| note.message).collect::<Vec<_>>()
    };
    for (name, is_said) in [("fp8-static", true), ("fp8-block", true), ("ct-w4a16", false), ("gptq", false)] {
        let notes = note(name, "activations");
        assert_eq!(notes.len(), usize::from(is_said), "{name}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains("results are those of the dequantized weights")));
    }
    let scales = note("fp8-static", "harmless-tensor");
    assert_eq!(scales.len(), 1, "{scales:?}");
    assert!(scales[0].contains("nor are 1 more: a scale of an 8-bit kv cache"), "{scales:?}");
}

#[test]
fn weights_that_are_no_numbers() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let (_f, path) = with_tensors(|tensors| {
            let (.., bytes) = tensor(tensors, "model.layers.0.self_attn.k_proj.weight");
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        });
        refused(&path, "not-finite", &["model.layers.0.self_attn.k_proj.weight", shown, "element 2047"]);
        // The end of a tensor is among the samples, so that loading sees a broken transfer.
        assert!(!report_of(&path, Depth::Samples).is_ok());
        assert!(report_of(&path, Depth::Headers).is_ok());
    }
}

#[test]
fn files_with_more_or_less_than_their_tensors() {
    let (_f, path) = with_bytes(|bytes| bytes[..bytes.len() - 1].to_vec());
    refused(&path, "broken-file", &["1 bytes missing"]);
    let (_f, path) = with_bytes(|bytes| [&bytes[..], &[0; 16]].concat());
    refused(&path, "broken-file", &["16 bytes belong to none"]);
    let (_f, path) = with_tensors(|tensors| {
        let tensor = tensor(tensors, "model.layers.0.input_layernorm.weight");
        (tensor.2, tensor.3) = (vec![0], Vec::new());
    });
    refused(&path, "tensor-shape", &["input_layernorm.weight", "expected shape [64], given [0]"]);
    let entry = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    for (header, says) in [
        (format!(r#"{{"a":{entry},"a":{entry}}}"#), "tensor a is given twice"),
        (r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#.to_owned(), "header is not valid"),
        (r#"{"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}}"#.to_owned(), "header is not valid"),
        (r#"{"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}}"#.to_owned(), "header is not valid"),
        (r#"{"a":{"shape":[2],"data_offsets":[0,8]}}"#.to_owned(), "header is not valid"),
        ("[]".to_owned(), "header is not valid"),
        (format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), "header is not valid"),
    ] {
        let (_f, path) = with_bytes(|_| raw(&header, 8));
        refused(&path, "broken-file", &[says]);
    }
}

#[test]
fn json_of_another_form() {
    const FILES: [&str; 3] = ["config.json", "generation_config.json", "tokenizer_config.json"];
    for file in FILES {
        for (text, says) in [
            (&b"[1, 2]"[..], "expected a JSON object, given a list of 2"),
            (b"null", "expected a JSON object, given null"),
            (b"\"text\"", "expected a JSON object, given a string"),
            (b"\xef\xbb\xbf{}", "byte order mark of UTF-8"),
            (b"\xff\xfe{\0}\0", "byte order mark of UTF-16"),
            (b"", file),
            (b"{\"a\": NaN}", file),
            (b"{\"a\": 1e999}", file),
        ] {
            let (_f, path) = single();
            fs::write(path.join(file), text).unwrap();
            refused(&path, "invalid-json", &[file, says]);
        }
        let (_f, path) = single();
        fs::write(path.join(file), "{\"a\":".repeat(100_000)).unwrap();
        refused(&path, "invalid-json", &[file]);
    }
    let (_f, path) = single();
    fs::write(path.join("tokenizer.json"), b"\xef\xbb\xbf{}").unwrap();
    refused(&path, "invalid-json", &["tokenizer.json", "byte order mark"]);
    for (index, says) in [
        (json!([]), "expected a JSON object, given a list of 0"),
        (json!({}), "expected weight_map to be an object of file names, given nothing"),
        (json!({"weight_map": []}), "expected weight_map to be an object of file names, given a list of 0"),
        (
            json!({"weight_map": {"a": 1}}),
            "expected a file name for each tensor of weight_map, given the number 1",
        ),
    ] {
        let (_f, path) = folder();
        fs::write(path.join(INDEX), index.to_string()).unwrap();
        refused(&path, "invalid-json", &[INDEX, says]);
    }
    let (_f, path) = single();
    edit(&path.join("tokenizer_config.json"), |config| config["chat_template"] = json!(5));
    refused(&path, "invalid-json", &["chat_template", "given the number 5"]);
}

#[test]
fn shards_under_names_that_lead_elsewhere() {
    for name in ["../x.safetensors", "/etc/passwd", "a/b.safetensors", ".", "..", ""] {
        let (_f, path) = folder();
        edit(&path.join(INDEX), |index| index["weight_map"]["model.norm.weight"] = json!(name));
        refused(&path, "broken-index", &["not a file name inside the folder"]);
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_waited_for() {
    let files = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS];
    for file in files.into_iter().chain(["chat_template.jinja"]) {
        let (_f, path) = single();
        let _ = fs::remove_file(path.join(file));
        fs::create_dir(path.join(file)).unwrap();
        refused(&path, "unreadable-file", &[file, "is a folder, expected a file"]);
        fs::remove_dir(path.join(file)).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path.join(file)).status();
        assert!(made.expect("mkfifo is there").success());
        refused(&path, "unreadable-file", &[file, "is a pipe, a socket or a device, expected a file"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    refused(&path, "unreadable-file", &["model.gguf", "is a pipe"]);
    let (_f, path) = single();
    fs::remove_file(path.join(WEIGHTS)).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", path.join(WEIGHTS)).unwrap();
    refused(&path, "no-weights", &["holds no weights"]);
}

#[test]
fn texts_without_end_are_not_read() {
    let (_f, path) = single();
    let file = fs::OpenOptions::new().write(true).open(path.join("tokenizer.json")).unwrap();
    // A hole: it takes no room.
    file.set_len(1 << 30).unwrap();
    refused(&path, "unreadable-file", &["tokenizer.json", "1073741824 bytes, expected at most 268435456"]);
}

#[test]
fn settings_of_the_wrong_kind_or_size() {
    for (field, value, says) in [
        ("num_hidden_layers", json!(-1), "num_hidden_layers: expected a whole number"),
        ("num_hidden_layers", json!(2.5), "num_hidden_layers: expected a whole number"),
        ("num_hidden_layers", json!([2]), "num_hidden_layers: expected a whole number"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("num_key_value_heads", json!(0), "num_key_value_heads: expected 1 to"),
        ("num_key_value_heads", json!(8), "expected a multiple of num_key_value_heads = 8, given 4"),
        ("vocab_size", json!(u64::MAX), "vocab_size: expected 1 to"),
        ("intermediate_size", json!(1_u64 << 60), "intermediate_size: expected 1 to"),
        ("rope_theta", json!(0), "rope_theta"),
        ("rope_theta", json!(-10000.0), "rope_theta"),
        ("rope_theta", json!("10000"), "rope_theta: expected a number"),
        ("rms_norm_eps", json!("small"), "rms_norm_eps: expected a number"),
        ("tie_word_embeddings", json!("false"), "tie_word_embeddings: expected true or false"),
        ("architectures", json!("Qwen2ForCausalLM"), "architectures: expected a list of strings"),
        ("eos_token_id", json!("2"), "eos_token_id: expected a token id or a list of them"),
        ("eos_token_id", json!([2, "3"]), "eos_token_id: expected a token id or a list of them"),
        ("eos_token_id", json!(1_u64 << 40), "eos_token_id: expected a token id"),
        ("bos_token_id", json!(1.5), "bos_token_id: expected a token id"),
        ("hidden_act", json!(1), "hidden_act: expected a string"),
        ("rope_scaling", json!("linear"), "rope_scaling: expected an object"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0}), "factor"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": "2"}), "factor: expected a number"),
        ("rope_scaling", json!({"rope_type": "longrope", "short_factor": [1.0]}), "factor"),
        ("quantization_config", json!("gptq"), "quantization_config: expected an object"),
        ("quantization_config", json!({"quant_method": 4}), "quant_method: expected a string"),
        (
            "quantization_config",
            json!({"quant_method": "gptq", "bits": "4"}),
            "bits: expected a whole number",
        ),
        ("quantization_config", json!({"quant_method": "gptq", "group_size": -7}), "group_size: -7"),
        (
            "quantization_config",
            json!({"quant_method": "fp8", "weight_block_size": [0, 128]}),
            "weight_block_size",
        ),
        ("quantization_config", json!({"quant_method": "awq", "bits": 8}), "bits: 8"),
    ] {
        let (_f, path) = with_config(field, value);
        refused(&path, "configuration", &[says]);
    }
    for (field, value, says) in [
        ("temperature", json!([1.0]), "temperature: expected a number"),
        ("top_k", json!(2.5), "top_k: expected a whole number"),
        ("top_p", json!("0.9"), "top_p: expected a number"),
        ("eos_token_id", json!({"id": 2}), "eos_token_id: expected a token id or a list of them"),
        ("max_new_tokens", json!(-3), "max_new_tokens: expected a whole number"),
    ] {
        let (_f, path) = single();
        fs::write(path.join("generation_config.json"), json!({ field: value }).to_string()).unwrap();
        refused(&path, "configuration", &["generation_config.json", says]);
    }
}

#[test]
fn models_in_a_form_that_is_not_read() {
    let (_f, path) = single();
    fs::rename(path.join(WEIGHTS), path.join("pytorch_model.bin")).unwrap();
    refused(&path, "pickled-weights", &["pytorch_model.bin", "save_pretrained", "safe_serialization"]);
    refused(&path.join("pytorch_model.bin"), "pickled-weights", &["convert them"]);
    let (_f, path) = single();
    fs::remove_file(path.join(WEIGHTS)).unwrap();
    refused(&path, "no-weights", &["holds no weights"]);
    fs::write(path.join("tiny.gguf"), "GGUF").unwrap();
    refused(&path, "no-weights", &["name the gguf file itself", "tiny.gguf"]);
    let empty = tempfile::tempdir().unwrap();
    refused(empty.path(), "not-a-model", &["expected a gguf file or a folder with config.json"]);
    refused(&empty.path().join("nowhere"), "unreadable-file", &["nowhere"]);
    fs::write(empty.path().join("file.txt"), "hello").unwrap();
    refused(&empty.path().join("file.txt"), "not-a-model", &["file.txt"]);
}

#[test]
fn br51_tokenizers_that_do_not_fit() {
    let tokenizer = |change: &dyn Fn(&Path)| {
        let (folder, path) = single();
        change(&path);
        (folder, path)
    };
    let (_f, path) = tokenizer(&|path| fs::remove_file(path.join("tokenizer.json")).unwrap());
    refused(&path, "tokenizer", &["tokenizer.json is not there"]);
    let (_f, path) = tokenizer(&|path| fs::write(path.join("tokenizer.json"), "{}").unwrap());
    refused(&path, "tokenizer", &["not a valid tokenizer"]);
    let (_f, path) = tokenizer(&|path| fs::write(path.join("tokenizer_config.json"), "[").unwrap());
    refused(&path, "invalid-json", &["tokenizer_config.json"]);
    let (_f, path) = tokenizer(&|path| {
        edit(&path.join("tokenizer_config.json"), |config| config["eos_token"] = json!("<|end_of_nothing|>"));
    });
    refused(&path, "special-token", &["eos", "<|end_of_nothing|>"]);
    let (_f, path) = tokenizer(&|path| {
        edit(&path.join("tokenizer.json"), |tokenizer| {
            let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
            vocab.insert("beyond".to_owned(), json!(400));
        });
    });
    refused(&path, "tokenizer-size", &["ids up to 400", "288 rows"]);
}

/// A GGUF file that `change` has been at.
fn gguf(change: impl FnOnce(&mut GgufWriter)) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = TinyModel::llama().to_gguf();
    change(&mut file);
    fs::write(&path, file.to_bytes()).unwrap();
    (folder, path)
}

#[test]
fn gguf_metadata_that_contradicts_the_tensors() {
    use MetadataValue::{I32s, String, Strings, U32};
    let (_f, path) = gguf(|file| file.set("llama.vocab_size", U32(32000)));
    refused(&path, "broken-file", &["llama.vocab_size: 32000, but the rows of token_embd.weight are 288"]);
    let (_f, path) = gguf(|file| file.replace("llama.block_count", U32(1)));
    refused(&path, "broken-file", &["llama.block_count: 1, but the layers that there are tensors of are 2"]);
    let (_f, path) = gguf(|file| file.replace("llama.block_count", U32(3)));
    refused(&path, "missing-tensor", &["blk.2.attn_q.weight"]);
    let (_f, path) = gguf(|file| file.replace("llama.context_length", U32(u32::MAX)));
    refused(&path, "configuration", &["llama.context_length", "4294967295"]);
    let (_f, path) = gguf(|file| file.replace("llama.feed_forward_length", U32(96)));
    refused(&path, "tensor-shape", &["blk.0.ffn_gate.weight"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.eos_token_id", U32(999)));
    refused(&path, "configuration", &["tokenizer.ggml.eos_token_id: 999"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.token_type", I32s(vec![1, 1])));
    refused(&path, "tokenizer", &["tokenizer.ggml.token_type: expected 267 entries, given 2"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.merges", Strings(vec!["x".to_owned()])));
    refused(&path, "tokenizer", &["does not join two tokens"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.model", String("t5".to_owned())));
    refused(&path, "tokenizer", &["\"t5\" is not supported; known are gpt2"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.model", String("llama".to_owned())));
    refused(&path, "tokenizer", &["tokenizer.ggml.scores: missing"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.pre", String("unheard-of".to_owned())));
    refused(&path, "tokenizer", &["unheard-of", "known are default, gpt-2"]);
    let (_f, path) = gguf(|file| file.replace("tokenizer.ggml.add_bos_token", U32(1)));
    refused(&path, "broken-file", &["tokenizer.ggml.add_bos_token: expected a boolean, given u32"]);
}

#[test]
fn gguf_files_that_are_broken() {
    let bytes = || TinyModel::llama().to_gguf().to_bytes();
    let broken = |bytes: Vec<u8>, says: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        refused(&path, "broken-file", &[says]);
    };
    broken(bytes()[..bytes().len() - 100].to_vec(), "100 bytes missing");
    broken(bytes()[..1000].to_vec(), "bytes left");
    broken(b"PK\x03\x04".to_vec(), "not a gguf file");
    broken(b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "git lfs pull");
    broken([&b"GGUF\x01\0\0\0"[..], &[0; 16]].concat(), "version 1 is not supported");
    let mut lying = bytes();
    lying[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    broken(lying, "entries cannot fit");
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
