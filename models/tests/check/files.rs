//! Files: torn, headers that lie, shards, things that are no files.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{INDEX, SHARD, WEIGHTS, edit, folder, raw, refused, single, tensor, with_bytes, with_tensors};

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
    let says = "header is not valid json: line 1, column 5: expected a value, but the file ends there";
    refused(&path, "broken-file", &[says]);
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
fn files_with_more_or_less_than_their_tensors() {
    let (_f, path) = with_bytes(|bytes| bytes[..bytes.len() - 1].to_vec());
    refused(&path, "broken-file", &["1 bytes missing"]);
    let (_f, path) = with_bytes(|_| raw("{}", 0));
    refused(&path, "missing-tensor", &["model.embed_tokens.weight is missing"]);
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
        (
            r#"{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}"#.to_owned(),
            "tensor a: dtype is given twice",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#.to_owned(),
            "tensor a: shape: expected a list of whole numbers of at least 0, given [-2]",
        ),
        (r#"{"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}}"#.to_owned(), "given [2.5]"),
        (r#"{"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}}"#.to_owned(), "given \"2\""),
        (
            r#"{"a":{"shape":[2],"data_offsets":[0,8]}}"#.to_owned(),
            "a: dtype: expected a string, given nothing",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}}"#.to_owned(),
            "tensor a: data_offsets: expected two whole numbers of at least 0, given [0,4,8]",
        ),
        (r#"{"a":7}"#.to_owned(), "tensor a: expected an object with dtype, shape and data_offsets, given 7"),
        ("[]".to_owned(), "the header is not valid: all of it: expected an object of tensors, given []"),
        (
            format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
            "at most 127 levels of lists and objects",
        ),
    ] {
        let (_f, path) = with_bytes(|_| raw(&header, 8));
        refused(&path, "broken-file", &[says]);
    }
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
    refused(&path, "unreadable-file", &["cannot read", WEIGHTS]);
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
