//! What is there and not used, and places that do not agree: told in the report, not in a log alone.

use std::fs;
use std::path::Path;

use quire_kernels::DType;
use quire_models::check::{CheckReport, Depth, Finding, Severity};
use quire_models::testing::TinyModel;
use serde_json::json;

use super::{INDEX, SHARD, WEIGHTS, edit, folder, refused, report_of, single, with_config, with_tensors};

/// The one note of this kind, in a report without problems.
#[track_caller]
fn note(report: &CheckReport, kind: &str) -> Finding {
    assert!(report.is_ok(), "{:#?}", report.findings);
    let mut of_kind = report.findings.iter().filter(|finding| finding.kind == kind);
    let found = of_kind.next().unwrap_or_else(|| panic!("{kind} is not in {:#?}", report.findings));
    assert_eq!((found.severity, of_kind.next()), (Severity::Note, None));
    found.clone()
}

#[track_caller]
fn noted(path: &Path, kind: &str, says: &[&str]) {
    let message = note(&report_of(path, Depth::Samples), kind).message;
    assert!(says.iter().all(|part| message.contains(part)), "{says:?} is not in {message}");
}

#[test]
fn br47_a_head_that_is_not_used_is_told_where_it_differs() {
    let (_f, path) = with_config("tie_word_embeddings", json!(true));
    let report = report_of(&path, Depth::Samples);
    let found = note(&report, "head-differs");
    assert_eq!((found.tensor.as_deref(), found.num_bytes), (Some("lm_head.weight"), Some(288 * 64 * 4)));
    assert!(
        !report.findings.iter().any(|finding| finding.kind == "harmless-tensor"),
        "{:#?}",
        report.findings
    );
    // Equal ones are one.
    let (_f, path) = with_tensors(|tensors| {
        let name = "model.embed_tokens.weight";
        let embedding = tensors.iter().find(|(given, ..)| given == name).unwrap().3.clone();
        tensors.iter_mut().find(|(given, ..)| given == "lm_head.weight").unwrap().3 = embedding;
    });
    edit(&path.join("config.json"), |config| config["tie_word_embeddings"] = json!(true));
    noted(&path, "harmless-tensor", &["the output head is the embedding"]);
}

#[test]
fn files_of_weights_that_are_not_read() {
    let (_f, path) = folder();
    fs::copy(path.join(SHARD), path.join("model-00004-of-00003.safetensors")).unwrap();
    let found = note(&report_of(&path, Depth::Headers), "unused-file");
    assert!(found.file.ends_with("model-00004-of-00003.safetensors") && found.num_bytes > Some(0));
    let (_f, path) = single();
    fs::write(path.join(INDEX), "{}").unwrap();
    fs::write(path.join("training_args.bin"), "of no weights").unwrap();
    noted(&path, "unused-file", &["is not read"]);
    let (_f, path) = single();
    fs::write(path.join("pytorch_model.bin"), "pickled").unwrap();
    noted(&path, "unused-file", &["is not read"]);
    let (_f, path) = folder();
    assert!(!report_of(&path, Depth::Headers).findings.iter().any(|finding| finding.kind == "unused-file"));
}

#[test]
fn settings_that_do_not_agree() {
    let (_f, path) = with_config("model_type", json!("olmo2"));
    noted(
        &path,
        "settings-differ",
        &["\"olmo2\" is that of Olmo2ForCausalLM", "Qwen2ForCausalLM, which is run"],
    );
    let rope = json!({"rope_type": "linear", "type": "dynamic", "factor": 2.0});
    let (_f, path) = with_config("rope_scaling", rope);
    noted(&path, "settings-differ", &["rope_type is \"linear\", type is \"dynamic\""]);
    let (_f, path) = folder();
    edit(&path.join(INDEX), |index| index["metadata"]["total_size"] = json!(7));
    noted(&path, "total-size", &["total_size: 7 bytes, but the tensors take "]);
}

#[test]
fn tokens_that_do_not_agree() {
    let (_f, path) = single();
    let map = json!({"bos_token": {"content": "<|endoftext|>"}, "eos_token": "<|im_start|>"});
    fs::write(path.join("special_tokens_map.json"), map.to_string()).unwrap();
    noted(&path, "tokens-differ", &["eos_token is \"<|im_start|>\" here, \"<|im_end|>\" is used"]);
    let (_f, path) = single();
    edit(&path.join("tokenizer_config.json"), |config| {
        config["added_tokens_decoder"] =
            json!({"0": {"content": "<|endoftext|>"}, "1": {"content": "<|im_end|>"}});
    });
    noted(&path, "tokens-differ", &["\"<|im_end|>\" for 1, tokenizer.json \"<|im_start|>\""]);
}

#[test]
fn tensors_under_other_names_are_hinted_at() {
    for (front, said) in [("", "\"\""), ("language_model.model.", "\"language_model.model.\"")] {
        let (_f, path) = with_tensors(|tensors| {
            for (name, ..) in tensors {
                if let Some(rest) = name.strip_prefix("model.") {
                    *name = format!("{front}{rest}");
                }
            }
        });
        let report = report_of(&path, Depth::Headers);
        let hint = report.findings.iter().find(|finding| finding.kind == "other-names").expect("a hint");
        assert!(hint.message.contains(&format!("with {said} in place of \"model.\"")), "{}", hint.message);
    }
}

#[test]
fn weights_in_another_form_are_named_with_what_to_do() {
    let shard = "model-00001-of-00002.safetensors";
    for (file, kind, says) in [
        ("model.pth", "pickled-weights", "save_pretrained"),
        ("model.pt", "pickled-weights", "save_pretrained"),
        ("adapter_model.safetensors", "no-weights", "is an adapter: merge it"),
        ("adapter_model.bin", "no-weights", "is an adapter: merge it"),
        ("consolidated.safetensors", "no-weights", "the repository for transformers"),
        (shard, "no-weights", "model.safetensors.index.json is missing"),
        ("weights.safetensors", "no-weights", "rename it"),
        ("flax_model.msgpack", "no-weights", "from_flax=True"),
        ("tf_model.h5", "no-weights", "from_tf=True"),
        ("model.onnx", "no-weights", "ONNX"),
    ] {
        let (_f, path) = single();
        fs::rename(path.join(WEIGHTS), path.join(file)).unwrap();
        fs::write(path.join("optimizer.pt"), "of no weights").unwrap();
        refused(&path, kind, &[file, says]);
    }
}

#[test]
fn problems_of_tensors_have_their_file_and_bytes() {
    let (_f, path) = folder();
    edit(&path.join("config.json"), |config| config["intermediate_size"] = json!(96));
    let report = report_of(&path, Depth::Headers);
    assert!(report.problems().count() > 0);
    for problem in report.problems() {
        assert_eq!(problem.num_bytes, Some(128 * 64 * 4), "{problem:?}");
    }
    let (_f, path) = with_tensors(|tensors| {
        let embedding = super::tensor(tensors, "model.embed_tokens.weight");
        (embedding.1, embedding.3) = (DType::I64, vec![0; 8 * 288 * 64]);
    });
    let report = report_of(&path, Depth::Headers);
    let problem = report.problems().next().expect("a problem");
    assert!(problem.file.ends_with(WEIGHTS) && problem.num_bytes == Some(8 * 288 * 64), "{problem:?}");
}

#[test]
fn bytes_behind_the_tensors_of_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = TinyModel::llama().to_gguf().to_bytes();
    fs::write(&path, [&bytes[..], &[0; 1000]].concat()).unwrap();
    let found = note(&report_of(&path, Depth::Headers), "trailing-bytes");
    assert!(found.num_bytes.is_some_and(|num_bytes| (968..=1000).contains(&num_bytes)), "{found:?}");
}
