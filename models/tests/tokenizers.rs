//! Tokenizers rebuilt from metadata give the ids of the original (BR-51).

mod common;

use std::path::Path;

use common::{assert_says, cached_model, golden};
use quire_models::testing::{MetadataValue, TinyModel, TinyTokenizer};
use quire_models::{Checkpoint, EncodeOptions, LoadOptions, SpecialTokens, Tokenizer};
use serde_json::Value;

const BARE: EncodeOptions =
    EncodeOptions { add_special_tokens: false, special_tokens: SpecialTokens::Recognized };
const UNTRUSTED: EncodeOptions = EncodeOptions { special_tokens: SpecialTokens::AsText, ..BARE };

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Checks every case of a golden file.
fn check_golden(tokenizer: &Tokenizer, file: &str) {
    for case in golden(file)["cases"].as_array().unwrap() {
        let (name, text) = (&case["name"], case["text"].as_str().unwrap());
        let expected = ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text, BARE).unwrap(), expected, "{name}");
        // Neither of the two models puts anything around a text.
        assert_eq!(tokenizer.encode(text, EncodeOptions::default()).unwrap(), expected, "{name}");
        let as_text = case.get("ids_specials_as_text").map_or(expected.clone(), ids);
        assert_eq!(tokenizer.encode(text, UNTRUSTED).unwrap(), as_text, "{name}, specials as text");
        let decoded = case.get("decoded").map_or(text, |text| text.as_str().unwrap());
        assert_eq!(tokenizer.decode(&expected), decoded, "{name}");
    }
}

#[test]
fn br51_smollm2_from_gguf_equals_the_original() {
    let Some(path) = cached_model("smollm2-135m") else { return };
    check_golden(&Tokenizer::open(&path).unwrap(), "smollm2-tokenizer.json");
}

#[test]
fn br51_qwen2_5_from_gguf_equals_the_original() {
    let Some(path) = cached_model("qwen2.5-coder-0.5b") else { return };
    check_golden(&Tokenizer::open(&path).unwrap(), "qwen2.5-tokenizer.json");
}

fn from_folder() -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    Checkpoint::open(folder.path(), &LoadOptions::default()).unwrap().tokenizer().unwrap()
}

fn from_gguf(edit: impl FnOnce(&mut quire_models::testing::GgufWriter)) -> quire_models::Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = TinyModel::llama().to_gguf();
    edit(&mut file);
    std::fs::write(&path, file.to_bytes()).unwrap();
    Checkpoint::open(&path, &LoadOptions::default())?.tokenizer()
}

#[test]
fn br51_a_folder_and_a_gguf_file_give_the_same_ids() {
    let (folder, gguf) = (from_folder(), from_gguf(|_| {}).unwrap());
    let texts = [
        "",
        "Café",
        "<s>G",
        "<|im_start|>user",
        "  two",
        "12345",
        "🙂",
        "the inner other\n\n ",
        "a<|im_end|>b",
    ];
    for text in texts {
        for options in [BARE, UNTRUSTED, EncodeOptions::default()] {
            let ids = folder.encode(text, options).unwrap();
            assert_eq!(ids, gguf.encode(text, options).unwrap(), "{text:?}");
            assert_eq!(folder.decode(&ids), text);
            assert_eq!(gguf.decode(&ids), text);
        }
    }
    assert_eq!(folder.named_tokens().eos, gguf.named_tokens().eos);
    assert_eq!(gguf.eos_token_ids(), folder.eos_token_ids());
}

#[test]
fn special_tokens_are_themselves_or_text() {
    let tokenizer = from_gguf(|_| {}).unwrap();
    let text = "a<|im_end|>";
    assert_eq!(tokenizer.encode(text, BARE).unwrap(), [TinyTokenizer::byte(b'a'), TinyTokenizer::EOS]);
    let bytes: Vec<u32> = text.bytes().map(TinyTokenizer::byte).collect();
    assert_eq!(tokenizer.encode(text, UNTRUSTED).unwrap(), bytes);
    assert!(tokenizer.is_special(TinyTokenizer::EOS) && !tokenizer.is_special(bytes[0]));
    assert_eq!(tokenizer.decode_plain(&[bytes[0], TinyTokenizer::EOS]), "a");
}

#[test]
fn br51_bos_is_put_in_front_once_where_the_flag_says_so() {
    let tokenizer = from_gguf(|file| {
        file.replace("tokenizer.ggml.add_bos_token", MetadataValue::Bool(true));
    })
    .unwrap();
    let a = TinyTokenizer::byte(b'a');
    assert_eq!(tokenizer.encode("a", EncodeOptions::default()).unwrap(), [TinyTokenizer::BOS, a]);
    assert_eq!(tokenizer.encode("", EncodeOptions::default()).unwrap(), [TinyTokenizer::BOS]);
    // A rendered template has it in its text.
    assert_eq!(tokenizer.encode("<|endoftext|>a", BARE).unwrap(), [TinyTokenizer::BOS, a]);
}

#[test]
fn user_defined_tokens_are_found_but_are_not_special() {
    let tokenizer = from_gguf(|file| {
        let kinds = (0..TinyTokenizer::tokens().len()).map(|id| if id == 1 { 4 } else { 1 });
        file.replace("tokenizer.ggml.token_type", MetadataValue::I32s(kinds.collect()));
    })
    .unwrap();
    assert_eq!(tokenizer.encode("<|im_start|>", UNTRUSTED).unwrap(), [TinyTokenizer::IM_START]);
    assert!(!tokenizer.is_special(TinyTokenizer::IM_START));
}

#[test]
fn broken_tokenizer_metadata_is_named() {
    let check = |key: &str, value: MetadataValue, expected: &str| {
        let error = from_gguf(|file| file.replace(key, value)).expect_err("the tokenizer must be refused");
        assert_says(&error, &["model.gguf", expected]);
    };
    let strings = |list: &[&str]| MetadataValue::Strings(list.iter().map(|&text| text.to_owned()).collect());
    let string = |text: &str| MetadataValue::String(text.to_owned());
    check("tokenizer.ggml.model", string("t5"), "tokenizer.ggml.model: \"t5\" is not supported");
    check("tokenizer.ggml.pre", string("odd"), "\"odd\" is not supported; known are default, gpt-2, phi-2");
    check("tokenizer.ggml.merges", strings(&["ab"]), "\"ab\" does not join two tokens");
    check("tokenizer.ggml.merges", strings(&["zzzzzzzzzzz zzzzzzzzzzz"]), "does not join two tokens");
    check("tokenizer.ggml.merges", strings(&["q q"]), "cannot be put together");
    check("tokenizer.ggml.token_type", MetadataValue::I32s(vec![1]), "expected 267 entries, given 1");
    check("tokenizer.ggml.tokens", MetadataValue::U32(1), "expected an array of strings, given u32");
    check("tokenizer.ggml.padding_token_id", MetadataValue::U32(267), "267 is not in the vocabulary of 267");
}

#[test]
fn a_tokenizer_file_that_contradicts_itself_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let open = |value: &Value| {
        std::fs::write(&path, value.to_string()).unwrap();
        Tokenizer::open(&path).expect_err("the file must be refused")
    };
    let mut json = TinyTokenizer::json();
    json["model"]["merges"] = serde_json::json!(["<|endoftext|> <|endoftext|>"]);
    assert_says(&open(&json), &["tokenizer.json"]);
    assert_says(
        &open(&serde_json::json!({"version": "1.0"})),
        &["tokenizer.json", "model: expected an object, given nothing"],
    );
    std::fs::remove_file(&path).unwrap();
    let error = Tokenizer::open(folder.path()).expect_err("there is no file");
    assert_says(&error, &["tokenizer.json is not there"]);
}

#[test]
fn chat_templates_are_found_where_models_keep_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    TinyModel::llama().write_folder(path).unwrap();
    let templates = || {
        let checkpoint = Checkpoint::open(path, &LoadOptions::default()).unwrap();
        checkpoint.chat_templates().unwrap()
    };
    assert_eq!(templates().default_template(), Some(TinyTokenizer::CHAT_TEMPLATE));

    let list = r#"{"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"}]}"#;
    std::fs::write(path.join("tokenizer_config.json"), list).unwrap();
    assert_eq!((templates().default_template(), templates().named("tool_use")), (Some("D"), Some("T")));
    std::fs::write(path.join("chat_template.jinja"), "J").unwrap();
    assert_eq!(Vec::from_iter(templates().names()), ["default", "tool_use"]);
    assert_eq!(templates().default_template(), Some("J"));

    let gguf = path.join("model.gguf");
    let mut file = TinyModel::llama().to_gguf();
    file.set("tokenizer.chat_template.tool_use", MetadataValue::String("T".to_owned()));
    file.set("tokenizer.chat_templates", MetadataValue::Strings(vec!["tool_use".to_owned()]));
    std::fs::write(&gguf, file.to_bytes()).unwrap();
    let templates = Checkpoint::open(&gguf, &LoadOptions::default()).unwrap().chat_templates().unwrap();
    assert_eq!(templates.default_template(), Some(TinyTokenizer::CHAT_TEMPLATE));
    assert_eq!(templates.named("tool_use"), Some("T"));
}

/// A text, its ids, and what those decode to.
type Case = (String, Vec<u32>, String);

/// Compares with the ids and texts of a folder that `tests/tools/tokenizer_cases.py` wrote; gives the number of texts.
fn check_cases(folder: &Path) -> usize {
    let text = std::fs::read_to_string(folder.join("cases.jsonl")).unwrap();
    let cases: Vec<Case> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut opened = vec![("gguf", Tokenizer::open(&folder.join("vocabulary.gguf")).unwrap())];
    let original = folder.join("tokenizer.json");
    if original.exists() {
        opened.push(("folder", Tokenizer::open(&original).unwrap()));
    }
    for (kind, tokenizer) in &opened {
        let answer = |(text, ids, _): &Case| {
            let given = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            (given, tokenizer.decode_plain(ids))
        };
        let wrong: Vec<&Case> =
            cases.iter().filter(|case| answer(case) != (case.1.clone(), case.2.clone())).collect();
        let shown: Vec<_> = wrong.iter().take(3).map(|case| (case, answer(case))).collect();
        let (num_wrong, num_cases) = (wrong.len(), cases.len());
        assert!(
            wrong.is_empty(),
            "{} from {kind}: {num_wrong} of {num_cases} texts: {shown:#?}",
            folder.display()
        );
    }
    cases.len()
}

#[test]
fn br51_tiny_vocabularies_give_the_ids_of_the_library_that_made_them() {
    for name in ["spm-prefixed", "spm-plain", "word-piece"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tokenizers").join(name);
        assert!(check_cases(&folder) >= 200);
    }
}

#[test]
fn br51_vocabularies_of_large_models_give_the_ids_of_the_reference() {
    let Some(folder) = std::env::var_os("QUIRE_TOKENIZER_CASES") else {
        eprintln!("skipped: QUIRE_TOKENIZER_CASES names no folder of tests/tools/tokenizer_cases.py");
        return;
    };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.join("cases.jsonl").exists() {
            println!("{}: {} texts", path.display(), check_cases(&path));
        }
    }
}
