//! Forms of every kind, compiled over a vocabulary of bytes.

use std::sync::Arc;
use std::time::Duration;

use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use serde_json::json;

use super::{Grammar, GrammarCompiler, GrammarError, GrammarSource, StructuredOutputs, Thought};

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
    compile_after(compiler, Thought::None, given)
}

fn compile_after(compiler: &GrammarCompiler, thought: Thought, given: serde_json::Value) -> Outcome {
    compiler.ticket(Arc::new(source(given).after(thought))).and_then(|ticket| ticket.wait())
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
    check_after(Thought::None, given, right, wrong);
}

#[track_caller]
fn check_after(thought: Thought, given: serde_json::Value, right: &[&str], wrong: &[&str]) {
    let grammar = compile_after(&compiler(), thought, given.clone());
    let grammar = grammar.unwrap_or_else(|error| panic!("{given}: {error}"));
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

/// As Python's `re` does, whatever an expression lacks.
#[test]
fn broken_expressions_are_refused_wherever_they_stand() {
    let compiler = compiler();
    for broken in [
        "a\\", "\\", "^\\", "a\\\\\\", "[a\\", "[", "[a", "[]", "[^", "[b-a]", "(", ")", "a)", "(a", "(?",
        "(?P<n", "(?P<1>a)", "*", "+a", "?", "a|*", "(*a)", "a{2,1}", "\\x", "\\xg0", "\\u12", "\\q", "\\1",
    ] {
        for given in [
            json!({"regex": broken}),
            json!({"json": {"type": "string", "pattern": broken}}),
            json!({"json": {"type": "object", "patternProperties": {broken: {}}}}),
            json!({"json": {"type": "object"}, "whitespace_pattern": broken}),
        ] {
            assert!(compile(&compiler, given.clone()).is_err(), "{given}");
        }
    }
    let error = compile(&compiler, json!({"regex": "a\\"})).unwrap_err().to_string();
    assert!(error.contains("ends with a backslash that escapes nothing"), "{error}");
    let error =
        compile(&compiler, json!({"json_object": true, "whitespace_pattern": "["})).unwrap_err().to_string();
    assert!(error.starts_with("structured_outputs.whitespace_pattern cannot be used"), "{error}");
    check(json!({"regex": "a\\\\"}), &["a\\"], &["a", "a/"]);
    check(json!({"regex": "a\\$"}), &["a$"], &["a", "a\\"]);
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

/// Of each schema: what it takes, and what gets round it where a name may be spelled in two ways or said twice.
#[test]
fn a_name_has_one_spelling_and_comes_once_where_it_is_spoken_of() {
    let integer = || json!({"type": "integer", "maximum": 0});
    for (schema, right, wrong) in [
        (
            json!({"properties": {"a": integer()}, "required": ["a"]}),
            &[r#"{"a":0}"#, r#"{"a":0,"b":1,"c\nd\"":2}"#][..],
            &[r#"{"a":0,"\u0061":9}"#, r#"{"\u0061":0}"#, r#"{"a":0,"a":9}"#, r#"{"a":0,"\u0062":9}"#][..],
        ),
        (
            json!({"properties": {"a": false}}),
            &["{}", r#"{"b":1}"#],
            &[r#"{"\u0061":9}"#, r#"{"b":1,"\u0061":9}"#],
        ),
        (
            json!({"properties": {"\n": false}}),
            &["{}"],
            &[r#"{"\n":9}"#, r#"{"\u000a":9}"#, r#"{"\u000A":9}"#],
        ),
        (json!({"not": {"required": ["a"]}}), &["{}"], &[r#"{"\u0061":9}"#, r#"{"a":9}"#]),
        (
            json!({"dependentRequired": {"a": ["b"]}}),
            &["{}", r#"{"b":1,"a":1}"#],
            &[r#"{"\u0061":9}"#, r#"{"a":9}"#],
        ),
        (
            json!({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}),
            &[r#"{"a":"","b":1}"#],
            &[r#"{"\u0061":9}"#, r#"{"a":"","\u0061":9}"#],
        ),
        (
            json!({"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}),
            &[r#"{"a":"","b":1}"#],
            &[r#"{"\u0061":9}"#, r#"{"\u0061":""}"#],
        ),
        (
            json!({"patternProperties": {"^\\s$": integer()}, "properties": {"\n": {"maximum": -5}}}),
            &[r#"{"\n":-5}"#],
            &[r#"{"\n":-1}"#, r#"{"\u000a":-1}"#, r#"{"\u000A":5}"#],
        ),
        (
            json!({"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": integer()}}),
            &[r#"{"a":0,"b":9}"#],
            &[r#"{"\u0061":9}"#, r#"{"a":0,"\u0061":9}"#],
        ),
        (json!({"minProperties": 1, "type": "object"}), &[r#"{"a":1}"#], &["{}"]),
        (
            json!({"minProperties": 2, "required": ["a"], "maxProperties": 2}),
            &[r#"{"a":1,"b":1}"#],
            &[r#"{"a":1}"#, r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":1}"#],
        ),
        (
            json!({"minProperties": 2, "properties": {"a": {}, "b": {}, "c": {}, "d": false}, "additionalProperties": false}),
            &[r#"{"a":1,"c":1}"#, r#"{"a":1,"b":1,"c":1}"#],
            &[r#"{"a":1}"#, r#"{"a":1,"d":1}"#, r#"{"a":1,"a":1}"#],
        ),
    ] {
        let of_object = json!({"type": "object", "allOf": [schema]});
        for schema in [schema, of_object] {
            check(json!({ "json": schema }), right, wrong);
        }
    }
}

#[test]
fn names_that_cannot_be_counted_are_refused() {
    for schema in [
        json!({"type": "object", "minProperties": 3}),
        json!({"minProperties": 2, "patternProperties": {"^a$": {"type": "integer"}}, "additionalProperties": false}),
        json!({"minProperties": 2, "additionalProperties": {"type": "integer"}}),
        json!({"items": {"anyOf": [{"minProperties": 3.0, "required": ["a", "a"]}]}}),
        json!({"not": {"maxProperties": 1}}),
    ] {
        let error = compile(&compiler(), json!({ "json": schema })).expect_err(&schema.to_string());
        assert!(matches!(error, GrammarError::Invalid { .. }), "{error}");
    }
}

/// What the compiler takes where it compiles schemas by itself, it takes in the same words within a grammar.
#[test]
fn schemas_within_grammars_are_held_to_as_well() {
    check(
        json!({"grammar": "start: \"x\" %json {\"properties\": {\"a\": false}}"}),
        &["x{}", "x{\n\"b\":1}", "x5"],
        &[r#"x{"\u0061":1}"#, "x{\n\n}", "x{\"a\":1}"],
    );
    let error = compile(&compiler(), json!({"grammar": "start: %json {\"minProperties\": 2}"})).unwrap_err();
    assert!(error.to_string().contains("minProperties is 2"), "{error}");
}

#[test]
fn days_and_seconds_are_those_of_the_calendar() {
    let days = ["2024-02-29", "2000-02-29", "2023-02-28", "1999-12-31", "0400-02-29", "2023-04-30"];
    let no_days =
        ["2023-02-29", "1900-02-29", "2023-02-30", "2023-04-31", "2023-13-01", "2023-00-10", "2023-1-1"];
    let quoted =
        |texts: &[&str], end: &str| texts.iter().map(|text| format!("\"{text}{end}\"")).collect::<Vec<_>>();
    for (format, end) in [("date", ""), ("date-time", "T12:00:59Z"), ("date-time", "t23:59:60.5+00:00")] {
        let (right, wrong) = (quoted(&days, end), quoted(&no_days, end));
        let (right, wrong): (Vec<_>, Vec<_>) =
            (right.iter().map(String::as_str).collect(), wrong.iter().map(String::as_str).collect());
        check(json!({"json": {"type": "string", "format": format}}), &right, &wrong);
    }
    let wrong = ["\"12:00:60Z\"", "\"24:00:00Z\"", "\"12:00:00\"", "\"23:59:60+01:00\""];
    check(
        json!({"json": {"type": "string", "format": "time"}}),
        &["\"23:59:60Z\"", "\"12:00:00-05:30\""],
        &wrong,
    );
    let both = json!({"type": "string", "format": "date", "pattern": "^20", "allOf": [{"pattern": "9$"}]});
    check(
        json!({ "json": both }),
        &["\"2024-02-29\""],
        &["\"2023-02-29\"", "\"1999-01-09\"", "\"2024-02-28\""],
    );
}

/// Reasoning has no form, and the answer behind it has.
#[test]
fn reasoning_may_come_before_a_form() {
    let point = || json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let tag = json!({"begin": "<f=", "schema": {"type": "null"}, "end": ">"});
    for (given, text, no_text) in [
        (json!({"json": point()}), r#"{"a":1}"#, r#"{"b":1}"#),
        (json!({"json": {"not": {"type": ["string", "object"]}}}), "[1]", "\"\""),
        (json!({"json_object": true}), "{}", "[]"),
        (json!({"regex": "[a-c]+x"}), "abx", "ab"),
        (json!({"choice": ["yes", "no"]}), "no", "nn"),
        (json!({"grammar": "start: a+\na: \"b\" | \"(\" a \")\""}), "b(b)", "b(b"),
        (json!({"structural_tag": {"structures": [tag], "triggers": ["<f="]}}), "x <f=null>.", "<f=1>"),
    ] {
        let with = |begin: &str| (format!("{begin}{text}"), format!("{begin}{no_text}"));
        let (whole, broken) = with("<think>hm: <f= {\"a\" <think> <</think>");
        let (begun, begun_broken) = with("hm\n</think>");
        let twice = format!("{whole}</think>{text}");
        check_after(
            Thought::Optional,
            given.clone(),
            &[text, &whole],
            &[no_text, &broken, "<think>", "<think></think"],
        );
        check_after(
            Thought::Begun,
            given.clone(),
            &[&begun, &whole],
            &[&begun_broken, text, no_text, "", "</think"],
        );
        if given.get("structural_tag").is_none() {
            check_after(Thought::Optional, given.clone(), &[], &[&begun, &twice]);
            check_after(Thought::None, given, &[text], &[&whole, &begun]);
        }
    }
}

/// What begins with the mark is reasoning to who reads the text, whatever the form says.
#[test]
fn a_form_that_may_begin_as_reasoning_does_comes_behind_some() {
    for given in [
        json!({"regex": "(?s:.)*ok"}),
        json!({"choice": ["<think>a</think>ok"]}),
        json!({"grammar": "start: \"\\n\" \"<think>\" /[a-z]+/ \"</think>ok\""}),
    ] {
        let form = if given.get("grammar").is_some() { "\n<think>a</think>ok" } else { "<think>a</think>ok" };
        let behind = format!("<think>b</think>{form}");
        check_after(Thought::None, given.clone(), &[form], &[]);
        check_after(Thought::Optional, given, &[&behind], &["ok", "<think>a</think>o"]);
    }
}

/// The compiler takes these classes for wider ones.
#[test]
fn classes_of_characters_leave_out_what_they_say() {
    let string = |pattern: &str| json!({"json": {"type": "string", "pattern": pattern}});
    let [quote, backslash, letter] = [r#""a\"b""#, r#""a\\b""#, r#""ab""#];
    check(string(r#"^[^"]*$"#), &[letter, backslash], &[quote]);
    check(string(r"^[^\\]*$"), &[letter, quote], &[backslash]);
    check(string(r"^[\x00-!#-~]*$"), &[letter, backslash], &[quote, "\"é\""]);
    check(string(r"^\S*$"), &[letter, quote, backslash], &[r#""a\nb""#]);
    check(json!({"json": {"not": {"const": "\""}}}), &[letter, quote], &[r#""\"""#]);
    let names = json!({"patternProperties": {"^[^\"]$": {"type": "null"}}, "additionalProperties": false});
    check(json!({ "json": names }), &[r#"{"a":null}"#, "{}"], &[r#"{"\"":null}"#]);
    let error = compile(&compiler(), string(r"^\P{L}*$")).unwrap_err().to_string();
    assert!(error.contains("cannot be told from others"), "{error}");
}
