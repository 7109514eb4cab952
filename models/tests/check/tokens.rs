//! Tokenizers that open and cannot be used, and settings of theirs that are not for prompts.

use std::fs;
use std::path::PathBuf;

use quire_models::check::Depth;
use quire_models::testing::{MetadataValue, TinyModel};
use quire_models::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{edit, refused, report_of, single};

/// A folder whose `tokenizer.json` has been changed.
fn with_tokenizer(change: impl FnOnce(&mut Value)) -> (TempDir, PathBuf) {
    let (folder, path) = single();
    edit(&path.join("tokenizer.json"), change);
    (folder, path)
}

fn frame(token: &str, special_tokens: &Value) -> Value {
    json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": special_tokens,
    })
}

#[test]
fn prompts_are_neither_cut_nor_filled() {
    let (_f, path) = with_tokenizer(|tokenizer| {
        tokenizer["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        tokenizer["padding"] = json!({"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
    });
    let ids = Tokenizer::open(&path).unwrap().encode("abcdefg", EncodeOptions::default()).unwrap();
    assert_eq!(ids.len(), 7);
    let report = report_of(&path, Depth::Headers);
    let note = report.findings.iter().find(|note| note.kind == "tokenizer-settings").expect("a note");
    assert!(note.message.contains("truncation to 2 tokens, padding of tokenizer.json"), "{}", note.message);
    assert!(report.is_ok());
}

#[test]
fn merges_are_left_out_by_no_chance() {
    let (_f, path) = with_tokenizer(|tokenizer| tokenizer["model"]["dropout"] = json!(0.9));
    let text = "the quick brown fox jumps over the lazy dog ".repeat(20);
    let encode = || Tokenizer::open(&path).unwrap().encode(&text, EncodeOptions::default()).unwrap();
    assert_eq!(encode(), encode());
    let report = report_of(&path, Depth::Headers);
    let note = report.findings.iter().find(|note| note.kind == "tokenizer-settings").expect("a note");
    assert!(note.message.contains("dropout of 0.9 of tokenizer.json"), "{}", note.message);
}

#[test]
fn an_added_token_without_a_row_is_told_and_no_problem() {
    let (_f, path) = with_tokenizer(|tokenizer| {
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        for id in 270..300 {
            let mut extra = added[0].clone();
            (extra["id"], extra["content"]) = (json!(id), json!(format!("<extra {id}>")));
            added.push(extra);
        }
    });
    let report = report_of(&path, Depth::Headers);
    let note = report.findings.iter().find(|note| note.kind == "tokenizer-size").expect("a note");
    assert!(note.message.contains("the embedding has 288 rows"), "{}", note.message);
    assert!(report.is_ok(), "{:#?}", report.findings);
}

#[test]
fn a_frame_must_be_made_of_tokens() {
    let (_f, path) = with_tokenizer(|tokenizer| tokenizer["post_processor"] = frame("x", &json!({})));
    refused_by_check(&path, "encoding \"\" ends in the midst of it");
    let beyond = json!({"<s>": {"id": "<s>", "ids": [99999], "tokens": ["<s>"]}});
    let (_f, path) = with_tokenizer(|tokenizer| tokenizer["post_processor"] = frame("<s>", &beyond));
    refused_by_check(&path, "post_processor): 99999 is not in the vocabulary of 288 tokens");
}

#[test]
fn some_text_must_have_ids() {
    let (_f, path) = with_tokenizer(|tokenizer| {
        (tokenizer["model"]["vocab"], tokenizer["model"]["merges"]) = (json!({}), json!([]));
        tokenizer["added_tokens"] = json!([]);
    });
    refused_by_check(&path, "has no ids for any of the texts");
    let (_f, path) = with_tokenizer(|tokenizer| {
        tokenizer["model"] = json!({"type": "WordLevel", "vocab": {"zzz": 0}, "unk_token": "<unk>"});
        (tokenizer["pre_tokenizer"], tokenizer["added_tokens"]) = (json!({"type": "Whitespace"}), json!([]));
    });
    refused_by_check(&path, "cannot be encoded");
}

/// Loading opens the tokenizer after the rest, so that it is asked by itself.
#[track_caller]
fn refused_by_check(path: &std::path::Path, says: &str) {
    refused(path, "tokenizer", &[says]);
    let checkpoint = quire_models::Checkpoint::open(path, &quire_models::LoadOptions::default()).unwrap();
    assert!(quire_models::check::tokenizer(&checkpoint).is_err());
}

#[test]
fn a_pointer_of_git_lfs_is_told_from_json() {
    for file in ["tokenizer.json", "config.json", "tokenizer_config.json"] {
        let (_f, path) = single();
        fs::write(path.join(file), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
            .unwrap();
        refused(&path, "broken-file", &[file, "is a pointer of git lfs"]);
    }
}

#[test]
fn scores_and_types_of_a_gguf_file_are_what_they_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = TinyModel::llama().to_gguf();
    let mut types = vec![1; 267];
    types[5] = 77;
    file.replace("tokenizer.ggml.token_type", MetadataValue::I32s(types));
    fs::write(&path, file.to_bytes()).unwrap();
    refused(&path, "tokenizer", &["tokenizer.ggml.token_type[5]: expected a type from 0 to 6, given 77"]);
    let mut file = TinyModel::llama().to_gguf();
    let mut scores = vec![0.0; 267];
    scores[7] = f32::NAN;
    file.replace("tokenizer.ggml.model", MetadataValue::String("llama".to_owned()));
    file.set("tokenizer.ggml.scores", MetadataValue::F32s(scores));
    fs::write(&path, file.to_bytes()).unwrap();
    refused(&path, "tokenizer", &["tokenizer.ggml.scores[7]: expected a finite number, given NaN"]);
}
