//! A real GGUF file beside the Hugging Face folder that `tests/tools/gguf_to_hf.py` makes of it in float32.
//! The folder is named by `QUIRE_SMOLLM2_HF` or `QUIRE_QWEN2_5_HF`.

mod common;

use std::path::{Path, PathBuf};

use common::cached_model;
use quire_models::{Checkpoint, LoadOptions, ModelRegistry, TensorSpec, WeightDType};

fn folder(variable: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: {variable} names no folder");
    }
    folder
}

fn check(gguf: &Path, folder: &Path) {
    let options = LoadOptions { dtype: Some(WeightDType::Float32), ..LoadOptions::default() };
    let gguf = Checkpoint::open(gguf, &options).unwrap();
    let folder = Checkpoint::open(folder, &options).unwrap();
    let registry = ModelRegistry::default();
    let specs = registry.find(&gguf.config().architecture).unwrap().tensors(&gguf).unwrap();
    assert!(folder.check(&specs).unwrap().unused.is_empty());
    assert_eq!(gguf.check(&specs).unwrap(), folder.check(&specs).unwrap());
    for TensorSpec { name, shape } in specs {
        let (first, second) = (gguf.tensor(&name, &shape).unwrap(), folder.tensor(&name, &shape).unwrap());
        assert!(*first.bytes == *second.bytes, "{name} differs");
    }
    let mut from_json = folder.config().clone();
    from_json.raw = Default::default();
    from_json.dtype = None;
    assert_eq!(*gguf.config(), from_json);
    assert_eq!(gguf.eos_token_ids(), folder.eos_token_ids());
    let (first, second) = (gguf.tokenizer().unwrap(), folder.tokenizer().unwrap());
    assert_eq!(first.named_tokens(), second.named_tokens());
    assert_eq!(first.inner().get_vocab(true), second.inner().get_vocab(true));
    assert_eq!(gguf.chat_templates().unwrap(), folder.chat_templates().unwrap());
}

#[test]
fn smollm2_from_gguf_equals_its_folder() {
    let (Some(gguf), Some(folder)) = (cached_model("smollm2-135m"), folder("QUIRE_SMOLLM2_HF")) else {
        return;
    };
    check(&gguf, &folder);
}

#[test]
fn qwen2_5_from_gguf_equals_its_folder() {
    let (Some(gguf), Some(folder)) = (cached_model("qwen2.5-coder-0.5b"), folder("QUIRE_QWEN2_5_HF")) else {
        return;
    };
    check(&gguf, &folder);
}
