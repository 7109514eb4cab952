//! Forms of every kind, compiled over a vocabulary of bytes.

use std::sync::Arc;
use std::time::Duration;

use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use serde_json::json;

use super::{Grammar, GrammarCompiler, GrammarError, GrammarSource, StructuredOutputs};

type Outcome = Result<Grammar, GrammarError>;

fn compiler() -> GrammarCompiler {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TinyTokenizer::json().to_string()).unwrap();
    let tokenizer = Tokenizer::open(&path).unwrap();
    GrammarCompiler::with_time_limit(Some(Arc::new(tokenizer)), 300, Duration::from_secs(60))
}

fn source(given: serde_json::Value) -> GrammarSource {
    serde_json::from_value::<StructuredOutputs>(given).unwrap().check().unwrap()
}

fn compile(compiler: &GrammarCompiler, given: serde_json::Value) -> Outcome {
    compiler.ticket(Arc::new(source(given))).and_then(|ticket| ticket.wait())
}

/// Whether a text is one of the grammar's, and whether another token may follow it.
fn matches(grammar: &Grammar, text: &str) -> bool {
    takes(grammar, &text.bytes().map(TinyTokenizer::byte).collect::<Vec<_>>())
}

fn takes(grammar: &Grammar, tokens: &[u32]) -> bool {
    let mut state = grammar.start();
    for (i, &token) in tokens.iter().enumerate() {
        if !state.mask([]).unwrap().allows(token) {
            return false;
        }
        if state.take(token).unwrap() {
            return i + 1 == tokens.len();
        }
    }
    state.mask([2]).unwrap().allows(2)
}

#[track_caller]
fn check(given: serde_json::Value, right: &[&str], wrong: &[&str]) {
    let grammar = compile(&compiler(), given.clone()).unwrap_or_else(|error| panic!("{given}: {error}"));
    for text in right {
        assert!(matches(&grammar, text), "{given} takes {text:?}");
    }
    for text in wrong {
        assert!(!matches(&grammar, text), "{given} does not take {text:?}");
    }
}

#[test]
fn each_kind_takes_its_texts_and_no_other() {
    check(
        json!({"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
            "additionalProperties": false}}),
        &[r#"{"a":5}"#, "{ \"a\":\n  -12  }"],
        &[r#"{"a":5.5}"#, r#"{"b":1}"#, r#"{"a":5"#, "{\n\n\"a\":5}", "{   \"a\":5}", "{}"],
    );
    check(json!({"json_object": true}), &["{}", r#"{"x": [1, null]}"#], &["[]", "1"]);
    check(json!({"json": true}), &["1", "[{}]"], &["x"]);
    check(json!({"regex": r"^\d{3}/[a-c]+$"}), &["123/a", "000/abcab"], &["12/a", "123/", "123/d"]);
    check(json!({"choice": ["yes", "no", "no way", "\"é\n"]}), &["yes", "no way", "\"é\n"], &["y", "yes "]);
    check(
        json!({"grammar": "start: \"a\" b+\nb: \"x\" | \"(\" b \")\""}),
        &["ax", "ax((x))x"],
        &["a", "a((x)"],
    );
    check(
        json!({"json": {"type": "array", "items": {"type": "null"}}, "whitespace_pattern": "_"}),
        &["[null,_null_]"],
        &["[ null]", "[null,__null]"],
    );
}

#[test]
fn a_tag_once_begun_has_its_form() {
    let tag = |name: &str, kind: &str| json!({"begin": format!("<f={name}>"), "schema": {"type": kind}, "end": "</f>"});
    check(
        json!({"structural_tag": {"structures": [tag("a", "integer"), tag("b", "null")], "triggers": ["<f="]}}),
        &["", "no tag < f", "say <f=a>12</f> and <f=b>null</f>.", "<f=b>null</f>"],
        &["<f=c>1</f>", "<f=a>null</f>", "x <f=a>1", "<f="],
    );
}

/// Its name in text begins no tag, and the token alone does.
#[test]
fn a_tag_may_begin_and_end_with_special_tokens() {
    let start = TinyTokenizer::IM_START;
    let given = json!({"structural_tag": {
        "structures": [{"begin": "<|im_start|>f=", "schema": {"type": "integer"}, "end": ";<|im_start|>"}],
        "triggers": ["<|im_start|>"],
    }});
    let grammar = compile(&compiler(), given).unwrap();
    let tokens = |parts: &[&str]| {
        let parts: Vec<Vec<u32>> =
            parts.iter().map(|text| text.bytes().map(TinyTokenizer::byte).collect()).collect();
        parts.join(&[start][..])
    };
    for right in
        [&["", "f=5;", ""][..], &["say ", "f=5;", " and ", "f=-7;", "."], &["no tag"], &["<|im_start|>g"]]
    {
        assert!(takes(&grammar, &tokens(right)), "{right:?}");
    }
    for wrong in [&["", "f=5;"][..], &["", "g=5;", ""], &["a", "f=x;", ""], &["a", "", ""]] {
        assert!(!takes(&grammar, &tokens(wrong)), "{wrong:?}");
    }
    let late = json!({"structural_tag": {
        "structures": [{"begin": "a<|im_start|>", "schema": {}, "end": ""}], "triggers": ["a<|im_start|>"],
    }});
    let error = compile(&compiler(), late).unwrap_err().to_string();
    assert!(error.contains("expected the special token <|im_start|> at its beginning"), "{error}");
}

#[test]
fn what_cannot_be_compiled_is_told_with_its_field() {
    let compiler = compiler();
    for (given, field, reason) in [
        (json!({"json": {"type": 5}}), "json", "type"),
        (json!({"json": "{"}), "json", "no JSON"),
        (json!({"json": {"$ref": "#/nowhere"}}), "json", "nowhere"),
        (json!({"json": {"$ref": "http://localhost:1/schema.json"}}), "json", ""),
        (json!({"json": {"not": {"pattern": "a"}}}), "json", "not"),
        (json!({"json": false}), "json", ""),
        (json!({"regex": "("}), "regex", ""),
        (json!({"grammar": "start: nothing"}), "grammar", "nothing"),
        (json!({"grammar": ""}), "grammar", ""),
    ] {
        let error = compile(&compiler, given.clone()).expect_err(&given.to_string());
        assert!(matches!(&error, GrammarError::Invalid { field: at, .. } if *at == field), "{error:?}");
        assert!(error.to_string().contains(reason), "{given}: {error}");
        assert!(error.to_string().len() < 600 && !error.to_string().contains('\n'), "{given}: {error}");
    }
}

#[test]
fn a_grammar_is_compiled_once() {
    let compiler = compiler();
    let first = compile(&compiler, json!({"regex": "a+"})).unwrap();
    let second = compile(&compiler, json!({"regex": "a+"})).unwrap();
    assert!(Arc::ptr_eq(&first.start, &second.start));
    assert!(compile(&compiler, json!({"regex": "("})).is_err());
    assert!(
        compiler.ticket(Arc::new(source(json!({"regex": "("})))).is_err(),
        "a bad one is known to be bad"
    );
}
