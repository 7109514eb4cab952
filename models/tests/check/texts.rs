//! Files of texts and settings: whatever stands in a field of another type than it has is told, with file, field and
//! value; nothing is taken for absent because it cannot be understood.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{edit, refused, report_of, single};
use quire_models::check::Depth;

/// A folder one of whose files is `text`.
fn with_file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let (folder, path) = single();
    fs::write(path.join(name), text).unwrap();
    (folder, path)
}

#[test]
fn special_tokens_of_another_type() {
    for role in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        for (value, says) in [
            (json!(5), ": expected a string, or an object with a string as content, given 5"),
            (json!([]), ": expected a string, or an object with a string as content, given []"),
            (json!(false), ": expected a string, or an object with a string as content, given false"),
            (json!({"content": 3}), ".content: expected a string, given 3"),
            (json!({"text": "a"}), ".content: expected a string, given nothing"),
        ] {
            let (_f, path) = single();
            edit(&path.join("tokenizer_config.json"), |config| config[role] = value);
            refused(&path, "tokenizer", &["tokenizer_config.json", &format!("{role}{says}")]);
        }
    }
    let (_f, path) = single();
    edit(&path.join("tokenizer_config.json"), |config| config["bos_token"] = Value::Null);
    assert!(report_of(&path, Depth::Headers).is_ok(), "null stands for none");
}

#[test]
fn chat_templates_of_another_type() {
    for (value, says) in [
        (json!(7), "expected chat_template to be a text, or named texts, given the number 7"),
        (json!([{"name": "default"}]), "expected a name and a template, both texts, in each entry"),
        (json!([{"name": 1, "template": "x"}]), "expected a name and a template, both texts, in each entry"),
        (json!(["x"]), "in each entry of chat_template, given a string"),
        (json!({"default": 5}), "expected each template of chat_template to be a text, given the number 5"),
    ] {
        for file in ["tokenizer_config.json", "chat_template.json"] {
            let (_f, path) = single();
            fs::write(path.join(file), json!({ "chat_template": value }).to_string()).unwrap();
            refused(&path, "invalid-json", &[file, says]);
        }
    }
}

#[test]
fn json_that_is_none_is_told_with_line_and_column() {
    let broken = "{\n  \"a\": 1\n  \"b\": 2\n}";
    let says = "line 3, column 3: expected `,` or `}`, given \"b\": 2";
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.json",
    ] {
        let (_f, path) = with_file(file, broken);
        refused(&path, "invalid-json", &[file, says]);
    }
    let (_f, path) = super::folder();
    fs::write(path.join(super::INDEX), broken).unwrap();
    refused(&path, "invalid-json", &[super::INDEX, says]);
}

/// No message speaks of the types of the program.
#[test]
fn no_message_is_a_parsers_own() {
    let values = [json!(5), json!([]), json!(true), json!("x"), json!({"type": "x"}), json!([[1]])];
    let fields: [(&str, &[&str]); 4] = [
        (
            "config.json",
            &["architectures", "hidden_size", "rope_scaling", "quantization_config", "eos_token_id"],
        ),
        ("generation_config.json", &["temperature", "eos_token_id", "top_k"]),
        (
            "tokenizer.json",
            &["model", "normalizer", "pre_tokenizer", "decoder", "added_tokens", "truncation"],
        ),
        ("tokenizer_config.json", &["bos_token", "chat_template"]),
    ];
    for (file, fields) in fields {
        for (field, value) in fields.iter().flat_map(|field| values.iter().map(move |value| (field, value))) {
            let (_f, path) = single();
            edit(&path.join(file), |whole| whole[*field] = value.clone());
            let report = report_of(&path, Depth::Headers);
            for problem in report.problems() {
                for word in ["invalid type", "untagged", "variant", "struct", "u32", "usize", "EOF"] {
                    assert!(!problem.message.contains(word), "{file}, {field}: {}", problem.message);
                }
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn links_to_nothing_are_told_and_not_taken_for_files_that_were_left_out() {
    for file in ["generation_config.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"] {
        let (_f, path) = single();
        let _ = fs::remove_file(path.join(file));
        std::os::unix::fs::symlink("../blobs/0123", path.join(file)).unwrap();
        refused(&path, "unreadable-file", &["cannot read", file]);
    }
}

#[cfg(unix)]
#[test]
fn files_that_may_not_be_read_are_named() {
    use std::os::unix::fs::PermissionsExt as _;

    let lock = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", super::WEIGHTS] {
        let (_f, path) = single();
        let file = path.join(file);
        if !file.exists() {
            fs::write(&file, "{}").unwrap();
        }
        lock(&file);
        if fs::File::open(&file).is_ok() {
            eprintln!("skipped: this user may read everything");
            return;
        }
        refused(&path, "unreadable-file", &["cannot read", &file.display().to_string(), "denied"]);
    }
}
