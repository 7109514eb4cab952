//! Configurations, generation settings, tokenizers.

use std::fs;
use std::path::Path;

use quire_models::check::Depth;
use serde_json::{Value, json};

use super::{INDEX, edit, folder, refused, report_of, single, with_config};

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
fn settings_of_the_wrong_kind_or_size() {
    for (field, value, says) in [
        ("num_hidden_layers", json!(-1), "num_hidden_layers: expected a whole number"),
        ("num_hidden_layers", json!(2.5), "num_hidden_layers: expected a whole number"),
        ("num_hidden_layers", json!([2]), "num_hidden_layers: expected a whole number"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        (
            "max_position_embeddings",
            json!(1),
            "max_position_embeddings: expected at least 2, a token of prompt",
        ),
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
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 1e30}),
            "factor: expected one with which the context",
        ),
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
    let (_f, path) = single();
    fs::write(path.join("generation_config.json"), r#"{"eos_token_id": {"id": 2}}"#).unwrap();
    let says = "eos_token_id: expected a token id or a list of them";
    refused(&path, "configuration", &["generation_config.json", says]);
    for (field, value) in
        [("temperature", json!([1.0])), ("top_k", json!("x")), ("top_p", json!("0.9")), ("min_p", json!({}))]
    {
        let (_f, path) = single();
        fs::write(path.join("generation_config.json"), json!({ field: value }).to_string()).unwrap();
        let report = report_of(&path, Depth::Headers);
        assert!(report.is_ok(), "requests can say what the file does not: {:#?}", report.findings);
        let note = report.findings.iter().find(|note| note.kind == "generation-config").expect("a note");
        assert!(note.file.ends_with("generation_config.json"), "{note:?}");
        assert!(note.message.contains(&format!("{field}: expected a number")), "{}", note.message);
    }
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
    refused(&path, "tokenizer", &["tokenizer.json", "model: expected an object, given nothing"]);
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
