//! GGUF files.

use std::fs;
use std::path::PathBuf;

use quire_models::check::Depth;
use quire_models::testing::{GgufWriter, MetadataValue, TinyModel};
use tempfile::TempDir;

use super::refused;

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
fn every_key_of_a_gguf_file_that_is_wrong_is_told_at_once() {
    use MetadataValue::{I32s, String, Strings, U32};
    let (_f, path) = gguf(|file| {
        file.replace("llama.embedding_length", String("wide".to_owned()));
        file.replace("llama.block_count", String("two".to_owned()));
        file.replace("llama.context_length", U32(1));
        file.set("llama.rope.scaling.type", String("warp".to_owned()));
        file.replace("tokenizer.ggml.token_type", I32s(vec![1]));
        file.replace("tokenizer.ggml.merges", Strings(vec!["x".to_owned()]));
        file.replace("tokenizer.ggml.add_bos_token", U32(1));
    });
    for (kind, says) in [
        ("broken-file", "llama.embedding_length: expected an integer"),
        ("broken-file", "llama.block_count: expected an integer"),
        ("configuration", "llama.context_length: expected at least 2"),
        ("configuration", "llama.rope.scaling.type: \"warp\" is not supported"),
        ("tokenizer", "token_type: expected 267 entries, given 1"),
        ("tokenizer", "does not join two tokens"),
        ("broken-file", "tokenizer.ggml.add_bos_token: expected a boolean"),
    ] {
        refused(&path, kind, &[says]);
    }
    assert_eq!(super::report_of(&path, Depth::Full).problems().count(), 7);
}
