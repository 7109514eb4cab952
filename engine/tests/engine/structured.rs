//! Output of a given form, on a device that follows a script where the form lets it.

use std::time::{Duration, Instant};

use quire_engine::{
    ErrorKind, FinishReason, GrammarCompiler, RequestOutput, SamplingParams, StructuredOutputs,
};
use serde_json::{Value, json};

use crate::rig::{EOS, Rig, RigSpec, byte_tokens, noise};

fn form(given: Value) -> Option<StructuredOutputs> {
    Some(serde_json::from_value(given).unwrap())
}

fn params(given: Value, max_tokens: u64) -> SamplingParams {
    SamplingParams { structured_outputs: form(given), ..SamplingParams::greedy(max_tokens) }
}

fn point() -> Value {
    json!({"json": {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "array", "items": {"type": "boolean"}}},
        "required": ["x", "y"],
        "additionalProperties": false,
    }})
}

fn both_loops(num_blocks: usize, script: fn(&[u32], usize) -> u32) -> [Rig; 2] {
    let spec = || RigSpec::with_pool(num_blocks, 4);
    [spec(), spec().plain()].map(|spec| spec.start(script))
}

fn ended(output: &RequestOutput) -> (&str, FinishReason) {
    (&output.outputs[0].text, output.outputs[0].finish_reason)
}

/// The model prefers a line break, and what comes after it in the table of bytes, to anything else.
#[test]
fn br_46_white_space_comes_to_an_end() {
    for rig in both_loops(64, |_, _| byte_tokens("\n")[0]) {
        let schema = json!({"json": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": false,
        }});
        let output = rig.generate(params(schema.clone(), 64));
        let (text, reason) = ended(&output);
        assert_eq!(reason, FinishReason::Stop);
        assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_number(), "{text:?}");
        assert!(text.contains('\n'), "{text:?}");

        let cut = rig.generate(params(schema, 5));
        assert_eq!(ended(&cut).1, FinishReason::Length);
        rig.check_alive();
    }
}

#[test]
fn br_46_what_cannot_be_compiled_is_refused_within_a_second() {
    let grammar_time_limit = GrammarCompiler::TIME_LIMIT;
    let rig = RigSpec { grammar_time_limit, ..RigSpec::default() }.start(|_, _| 50);
    let mut deep = json!({"type": "null"});
    (0..100).for_each(|_| deep = json!({"type": "array", "items": deep}));
    let long: Vec<String> = (0..100_000).map(|i| format!("value number {i}")).collect();
    let chain: serde_json::Map<String, Value> = (0..4000)
        .map(|i| (format!("d{i}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}]})))
        .collect();
    let wide: Vec<Value> =
        (0..2000).map(|i| json!({"properties": {format!("p{i}"): {"type": "null"}}})).collect();
    for (given, must_fail) in [
        (json!({"json": {"type": 5}}), true),
        (json!({"json": {"$ref": "#/$defs/none"}}), true),
        (json!({"json": {"$ref": "https://example.invalid/schema"}}), true),
        (json!({"json": {"$ref": "#"}}), false),
        (json!({"json": {"allOf": [{"$ref": "#"}]}}), false),
        (json!({"json": {"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/1"}]}}), false),
        (
            json!({"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}}),
            false,
        ),
        (json!({"json": {"$ref": "#/$defs/d0", "$defs": chain}}), false),
        (json!({"json": {"enum": long}}), true),
        (json!({"json": " ".repeat(1 << 20)}), true),
        (json!({"json": deep}), false),
        (json!({"json": {"allOf": wide}}), false),
        (json!({"json": "[".repeat(100_000)}), true),
        (json!({"regex": "("}), true),
        (json!({"regex": "(a|a)*".repeat(2000)}), false),
        (json!({"regex": "((((((((((a{99}){99}){99}){99}){99}){99}){99}){99}){99}){99})"}), false),
        (json!({"regex": format!(".*a.{{{}}}", 5000)}), false),
        (json!({"regex": "(".repeat(4000)}), true),
        (json!({"grammar": format!("start: {}", "(".repeat(4000))}), true),
        (json!({"grammar": "start: start"}), true),
        (json!({"grammar": "start: \"a\" start | start \"b\" | start start | \"\""}), false),
        (
            json!({"grammar": (0..4000).fold("start: r0\n".to_owned(), |text, i| format!("{text}r{i}: r{}\n", i + 1))}),
            true,
        ),
        (json!({"choice": (0..20_000).map(|i| format!("choice {i}")).collect::<Vec<_>>()}), false),
    ] {
        let shown: String = given.to_string().chars().take(60).collect();
        let started = Instant::now();
        let outcome = rig.llm.generate(["x"], &params(given, 4));
        let took = started.elapsed();
        println!("{shown}: {took:?} {:?}", outcome.as_ref().map(|outputs| &outputs[0].outputs[0].text));
        if let Err(error) = &outcome {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            assert_eq!(
                (error.kind(), error.field()),
                (ErrorKind::BadRequest, Some("structured_outputs")),
                "{cause}"
            );
            assert!(cause.starts_with("structured_outputs.") && cause.len() < 600, "{shown}: {cause}");
        }
        assert!(outcome.is_err() || !must_fail, "{shown} is refused");
        // What is given up is given up after 0.8 s; the machine may be busy with other tests.
        assert!(took < Duration::from_millis(1500), "{shown} took {took:?}");
        rig.check_alive();
    }
}

#[test]
fn the_form_holds_beside_others_after_preemptions_and_in_every_output() {
    let mut seen: Vec<Vec<String>> = Vec::new();
    for rig in both_loops(24, noise) {
        let requests = (0..6u32).map(|i| {
            let params = SamplingParams {
                n: 1 + i % 2,
                temperature: 1.0,
                seed: Some(i.into()),
                logprobs: Some(2),
                structured_outputs: if i == 3 { None } else { form(point()) },
                max_tokens: Some(40),
                ..SamplingParams::default()
            };
            (vec![50 + i; 5], params)
        });
        let outputs = rig.llm.generate_with(requests).unwrap();
        let mut texts = Vec::new();
        for (i, output) in outputs.iter().enumerate() {
            for one in &output.outputs {
                texts.push(one.text.clone());
                assert_eq!(one.logprobs.as_ref().map(Vec::len), Some(one.token_ids.len()));
                if i != 3 && one.finish_reason == FinishReason::Stop {
                    let value: Value = serde_json::from_str(&one.text).unwrap();
                    assert!(value["x"].is_number() && value["y"].is_array(), "{value}");
                }
            }
        }
        assert!(outputs.iter().any(|output| output.metrics.num_preemptions > 0), "the pool is too large");
        seen.push(texts);
        rig.check_alive();
        rig.check_idle();
    }
    assert_eq!(seen[0], seen[1], "both loops");
}

#[test]
fn a_form_that_is_complete_ends_the_output() {
    for rig in both_loops(64, |_, _| EOS) {
        let yes_or_no = json!({"choice": ["yes", "no"]});
        let ends = |edit: fn(&mut SamplingParams)| {
            let mut params = params(yes_or_no.clone(), 20);
            edit(&mut params);
            let output = rig.generate(params).outputs.remove(0);
            (output.text, output.finish_reason, output.stop_reason)
        };
        let no = ("no".to_owned(), FinishReason::Stop, None);
        assert_eq!(ends(|_| ()), no);
        assert_eq!(ends(|params| params.min_tokens = 10), no, "there is nothing more to say");
        assert_eq!(ends(|params| params.ignore_eos = true), no);
        let stopped = ends(|params| params.stop = vec!["o".to_owned()]);
        assert_eq!((stopped.0.as_str(), stopped.1), ("n", FinishReason::Stop));

        let digits = |edit: fn(&mut SamplingParams)| {
            let mut params = params(json!({"regex": "[0-9]+"}), 9);
            edit(&mut params);
            let output = rig.generate(params).outputs.remove(0);
            (output.token_ids.len(), output.finish_reason)
        };
        assert_eq!(digits(|_| ()), (2, FinishReason::Stop), "a digit, then the end");
        assert_eq!(digits(|params| params.min_tokens = 5), (6, FinishReason::Stop));
        assert_eq!(digits(|params| params.ignore_eos = true), (9, FinishReason::Length));
        rig.check_alive();
    }
}

#[test]
fn words_may_be_forbidden_within_a_form() {
    for rig in both_loops(64, |_, _| EOS) {
        let mut params = params(json!({"choice": ["yes", "nay", "no"]}), 20);
        params.bad_words = vec!["na".to_owned(), "no".to_owned()];
        let error = rig.llm.generate(["x"], &params).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadRequest, "neither may follow the n: {error:?}");
        params.bad_words = vec!["na".to_owned()];
        assert_eq!(rig.generate(params).outputs[0].text, "no");
        rig.check_alive();
    }
}

/// A model that spells names in other ways, says them twice and counts them.
fn respelled(prompt: &[u32], position: usize) -> u32 {
    let tokens = byte_tokens("\"\"{\"a\":9,\"\\u0061\":9,\"a\":-1,\"b\":0}}}");
    tokens[noise(prompt, position) as usize % tokens.len()]
}

#[test]
fn no_output_gets_round_a_schema_by_the_way_it_writes_names() {
    let schemas = [
        json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 0}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": false}}),
        json!({"type": "object", "not": {"required": ["a"]}}),
        json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "patternProperties": {"^a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "required": ["a"], "minProperties": 2, "maxProperties": 2}),
        json!({"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false}),
    ];
    let rig = RigSpec::with_pool(400, 16).start(respelled);
    for schema in schemas {
        let validator = jsonschema::validator_for(&schema).unwrap();
        let requests = (0..20u32).map(|i| (vec![50 + i; 5], params(json!({ "json": schema }), 60)));
        let outputs = rig.llm.generate_with(requests).unwrap();
        let ended = outputs.iter().map(ended).filter(|(_, reason)| *reason == FinishReason::Stop);
        let texts: Vec<&str> = ended.map(|(text, _)| text).collect();
        assert!(texts.len() > 10, "{schema}: {texts:?}");
        for text in texts {
            assert!(validator.is_valid(&serde_json::from_str(text).unwrap()), "{text}: {schema}");
        }
    }
    rig.check_alive();
}

#[test]
fn what_follows_reasoning_has_the_form() {
    let thinks = |prompt: &[u32], position: usize| {
        let thought = "hm ".repeat(1 + noise(prompt, 0) as usize % 5);
        let said = byte_tokens(format!("<think>{{\"x\" {thought}</think>"));
        said.get(position - prompt.len()).copied().unwrap_or_else(|| noise(prompt, position))
    };
    let mut seen = Vec::new();
    for rig in [RigSpec::with_pool(90, 4), RigSpec::with_pool(90, 4).plain()].map(|spec| spec.start(thinks)) {
        let mut given = point();
        given["reasoning"] = "qwen3".into();
        given["whitespace_pattern"] = " ".into();
        let requests = (0..8u32).map(|i| (vec![50 + i; 5], params(given.clone(), 120)));
        let outputs = rig.llm.generate_with(requests).unwrap();
        let texts: Vec<String> = outputs.iter().map(|output| output.outputs[0].text.clone()).collect();
        let mut num_ended = 0;
        for (text, reason) in outputs.iter().map(ended) {
            assert!(text.starts_with("<think>{\"x\" hm "), "{text}");
            if reason == FinishReason::Stop {
                let (_, answer) = text.split_once("</think>").unwrap();
                let value: Value = serde_json::from_str(answer).unwrap();
                assert!(value["x"].is_number() && value["y"].is_array(), "{value}");
                num_ended += 1;
            }
        }
        assert!(num_ended > 2, "{texts:?}");
        seen.push(texts);
        rig.check_alive();
        rig.check_idle();
    }
    assert_eq!(seen[0], seen[1], "both loops");
}

/// The prompt says whether reasoning has begun, or is over.
#[test]
fn where_reasoning_begins_the_prompt_says() {
    let rig = RigSpec::default().start_with_bytes("hm</think>yes");
    for (prompt, format, expected) in [
        ("assistant: <think>\n", "qwen3", "hm</think>yes"),
        ("assistant: ", "deepseek_r1", "hm</think>yes"),
        ("<think>\n\n</think>\n", "deepseek_r1", "no"),
        ("<think></think>", "qwen3", "no"),
        ("assistant: ", "qwen3", "no"),
    ] {
        let form = json!({"choice": ["yes", "no"], "reasoning": format});
        let output = rig.llm.generate([prompt], &params(form, 30)).unwrap().remove(0);
        let (text, reason) = ended(&output);
        assert_eq!(reason, FinishReason::Stop);
        // Without reasoning the first letter is one of the two that may come.
        let is_right = if expected == "no" { ["yes", "no"].contains(&text) } else { text == expected };
        assert!(is_right, "{prompt:?} {format}: {text}");
    }
    rig.check_alive();
}

/// The token that ends texts elsewhere does not end one that goes on behind it.
#[test]
fn an_end_token_may_stand_within_a_form() {
    for (grammar, num_tokens) in [
        (format!("start: \"x\" <[{EOS}]> \"y\""), 3),
        (format!("start: \"x\" <[{EOS}]>"), 2),
        (format!("start: \"x\" (<[{EOS}]> \"y\")?"), 2),
    ] {
        for rig in both_loops(64, |_, _| EOS) {
            let output = rig.generate(params(json!({ "grammar": grammar }), 20));
            assert_eq!(ended(&output).1, FinishReason::Stop);
            let text = if num_tokens == 3 { "xy" } else { "x" };
            assert_eq!(
                (ended(&output).0, output.outputs[0].token_ids.len()),
                (text, num_tokens),
                "{grammar}"
            );
            let stops =
                SamplingParams { stop_token_ids: vec![EOS], ..params(json!({ "grammar": grammar }), 20) };
            assert_eq!(ended(&rig.generate(stops)).0, "x", "it was asked for");
            rig.check_alive();
        }
    }
}

/// The model wants to end at once. No output ends before it has so many tokens, but where its form has no more.
#[test]
fn a_form_and_min_tokens_each_have_their_say() {
    let [a, b] = [byte_tokens("a")[0], byte_tokens("b")[0]];
    let between = || json!({"regex": "a{2,6}"});
    let mid = || json!({"grammar": format!("start: \"a\" <[{EOS}]> \"b\"")});
    let maybe = || json!({"grammar": format!("start: \"a\" (<[{EOS}]> \"b\")?")});
    let choice = || json!({"choice": ["ab", "abab"]});
    for (given, min_tokens, token_ids) in [
        (between(), 0, vec![a, a, EOS]),
        (between(), 2, vec![a, a, EOS]),
        (between(), 4, vec![a, a, a, a, EOS]),
        (between(), 6, vec![a; 6]),
        (between(), 7, vec![a; 6]),
        (between(), 12, vec![a; 6]),
        (choice(), 0, vec![a, b, EOS]),
        (choice(), 3, vec![a, b, a, b]),
        (choice(), 12, vec![a, b, a, b]),
        (mid(), 0, vec![a, EOS, b]),
        (mid(), 3, vec![a, EOS, b]),
        (mid(), 12, vec![a, EOS, b]),
        (maybe(), 0, vec![a, EOS]),
        (maybe(), 1, vec![a, EOS]),
        (maybe(), 2, vec![a, EOS, b]),
        (maybe(), 12, vec![a, EOS, b]),
    ] {
        for (rig, ignore_eos) in both_loops(64, |_, _| EOS).iter().flat_map(|rig| [(rig, false), (rig, true)])
        {
            let params = SamplingParams { min_tokens, ignore_eos, ..params(given.clone(), 12) };
            let output = rig.generate(params);
            let output = &output.outputs[0];
            assert_eq!(output.finish_reason, FinishReason::Stop, "{given} {min_tokens}");
            if !ignore_eos {
                assert_eq!(output.token_ids, token_ids, "{given} {min_tokens}");
            }
            rig.check_alive();
        }
    }
    for given in [json!({"json": {"type": "boolean"}}), json!({"json": {"const": {"a": [true, null]}}})] {
        let [rig, _] = both_loops(64, |_, _| EOS);
        let output = rig.generate(SamplingParams { min_tokens: 60, ..params(given, 200) });
        let (text, reason) = ended(&output);
        assert_eq!(reason, FinishReason::Stop);
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// Tokens that the client itself named as the end are forbidden before their time, whatever the form says.
#[test]
fn a_stop_token_that_a_form_needs_is_an_error_that_says_so() {
    let [a, b] = [byte_tokens("a")[0], byte_tokens("b")[0]];
    let [rig, _] = both_loops(64, |_, _| EOS);
    let with = |regex: &str, stop: u32, ignore_eos: bool| SamplingParams {
        min_tokens: 3,
        stop_token_ids: vec![stop],
        ignore_eos,
        ..params(json!({"regex": regex}), 12)
    };
    for (params, fields) in [
        (with("a{2,6}", a, false), "min_tokens, structured_outputs together"),
        (with("ab?", b, true), "min_tokens, structured_outputs together"),
    ] {
        let error = rig.llm.generate(["x"], &params).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(error.kind() == ErrorKind::BadRequest && cause.contains(fields), "{cause}");
        rig.check_alive();
    }
    // There is another end.
    assert_eq!(rig.generate(with("ab?", b, false)).outputs[0].token_ids, [a, EOS]);
    assert_eq!(rig.generate(with("aaa?a?b", b, false)).outputs[0].token_ids.last(), Some(&b));
}

/// The first output fails before the others are made of it: that is the end of the request, and of nothing else.
#[test]
fn outputs_that_fail_with_their_first_token_are_one_error() {
    for rig in both_loops(64, |_, _| EOS) {
        for prompts in [&["x"][..], &["x", "yz"]] {
            let params = SamplingParams {
                n: 3,
                temperature: 1.0,
                allowed_token_ids: Some(vec![EOS]),
                ..params(json!({"regex": "a{2,6}"}), 12)
            };
            let error = rig.llm.generate(prompts.iter().copied(), &params).unwrap_err();
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(cause.contains("allowed_token_ids, structured_outputs together"), "{cause}");
            rig.check_alive();
            rig.check_idle();
        }
    }
}
