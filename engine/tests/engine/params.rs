//! Each sampling parameter as JSON gives it: its default, both edges, one step outside, and values of another type.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use quire_engine::{CheckedParams, EosTokens, LogitsProcessorCall, ParamError, ParamLimits, SamplingParams};
use quire_executor::{LogitsProcessor, LogitsProcessors, RowLogits};
use serde_json::{Map, Value, json};

/// One parameter.
struct Row {
    field: &'static str,
    default: &'static str,
    /// Values at the edges, and between them.
    allowed: &'static str,
    /// Values one step outside.
    outside: &'static str,
    other_type: &'static str,
}

const fn row(
    field: &'static str,
    default: &'static str,
    allowed: &'static str,
    outside: &'static str,
    other_type: &'static str,
) -> Row {
    Row { field, default, allowed, outside, other_type }
}

const NUMBERS: &str = r#"["1", true, [1], {}]"#;
const INTEGERS: &str = r#"["1", 1.5, true, [1], {}]"#;
const SWITCHES: &str = r#"[1, 0, "true", [true], {}]"#;
/// Above what 64 bits hold, and below.
const HUGE: &str = "18446744073709551616";

const ROWS: &[Row] = &[
    row("n", "1", "[1, 2, 3.0, 16384]", "[0, 16385]", r#"["x", 1.5, -1, true]"#),
    row("best_of", "null", "[1]", "[0, 2]", r#"["1", 1.5, -1]"#),
    row("presence_penalty", "0.0", "[-2, -1.5, 0, 2]", "[-2.001, 2.001, 1e300]", NUMBERS),
    row("frequency_penalty", "0.0", "[-2, 0, 1, 2]", "[-2.001, 2.001]", NUMBERS),
    row("repetition_penalty", "1.0", "[5e-324, 1e-45, 0.001, 1, 2, 1000, 1e300]", "[0, -1]", NUMBERS),
    row("temperature", "1.0", "[0, 0.000001, 0.005, 1, 2]", "[-0.001, 2.001, 1e300]", NUMBERS),
    row("top_p", "1.0", "[0.000001, 0.5, 1]", "[0, -0.1, 1.001]", NUMBERS),
    row("top_k", "0", "[-1, -1.0, 0, 1, 1000000]", "[-2, -2.0]", INTEGERS),
    row("min_p", "0.0", "[0, 0.5, 1]", "[-0.001, 1.001]", NUMBERS),
    row(
        "seed",
        "null",
        "[-1, 0, 1e18, 9223372036854775807, -9223372036854775808]",
        "[]",
        r#"[1.5, 9223372036854775808, "1"]"#,
    ),
    row("stop", "[]", r#"["a", ["a", "b"], []]"#, r#"["", ["a", ""]]"#, "[1, [1], {}, true]"),
    row("stop_token_ids", "[]", "[[], [0], [99]]", "[[100], [0, 100]]", r#"[["a"], [1.5], [-1], 5, "5"]"#),
    row("bad_words", "[]", r#"[[], ["a"], ["a", " "]]"#, r#"[[""], ["a", ""]]"#, r#"["a", [1], {}]"#),
    row("include_stop_str_in_output", "false", "[true, false]", "[]", SWITCHES),
    row("ignore_eos", "false", "[true, false]", "[]", SWITCHES),
    row("max_tokens", "16", "[1, 7.0, 18446744073709551615]", "[0]", r#"[-1, 1.5, "1", true]"#),
    row("min_tokens", "0", "[0, 16]", "[17]", r#"[-1, 1.5, "1", true]"#),
    row("logprobs", "null", "[0, 20, true, false]", "[-1, -2, 21]", r#"["1", 1.5, [1]]"#),
    row("prompt_logprobs", "null", "[0, 20, true, false]", "[-1, -2, 21]", r#"["1", 1.5, [1]]"#),
    row("skip_reading_prefix_cache", "false", "[true, false]", "[]", SWITCHES),
    row("detokenize", "true", "[true, false]", "[]", SWITCHES),
    row("skip_special_tokens", "true", "[true, false]", "[]", SWITCHES),
    row("spaces_between_special_tokens", "true", "[true, false]", "[]", SWITCHES),
    row("truncate_prompt_tokens", "null", "[-1, 1, 1000000]", "[0, -2]", INTEGERS),
    row(
        "logit_bias",
        "{}",
        r#"[{}, {"0": 1}, {"99": -1000}]"#,
        r#"[{"100": 1}]"#,
        r#"[[1], {"a": 1}, {"1": "2"}, {"-1": 1}, {"1.5": 1}]"#,
    ),
    row("allowed_token_ids", "null", "[[0], [99], [3, 3]]", "[[], [100]]", r#"[["a"], [-1], 3, [1.5]]"#),
    row(
        "structured_outputs",
        "null",
        r#"[{"json": {}}, {"regex": "a"}, {"choice": ["a"]}, {"json_object": true, "whitespace_pattern": " "}]"#,
        r#"[{}, {"json": {}, "regex": "a"}, {"choice": []}, {"json": 1}]"#,
        r#"["a", {"regex": 1}, {"guided_json": {}}]"#,
    ),
    row(
        "logits_processors",
        "[]",
        r#"[[], ["even"], [{"name": "even"}, {"qualname": "add", "kwargs": 1}], [{"name": "add", "args": 2}]]"#,
        r#"[["odd"], ["add"], ["even", "even"], [{"name": "add", "args": "x"}]]"#,
        r#"["even", [1], [{"args": 1}], [{"name": "even", "x": 1}], {}]"#,
    ),
    row(
        "output_kind",
        r#""delta""#,
        r#"["cumulative", "delta", "final_only"]"#,
        "[]",
        r#"["final", 2, true, []]"#,
    ),
];

struct Even;

impl LogitsProcessor for Even {
    fn process(&mut self, _rows: &mut [RowLogits<'_>]) {}
}

/// Takes a number.
struct Add;

impl LogitsProcessor for Add {
    fn check_args(&self, args: &Value) -> Result<(), String> {
        args.as_f64().map(drop).ok_or_else(|| "a number".to_owned())
    }

    fn process(&mut self, _rows: &mut [RowLogits<'_>]) {}
}

fn limits() -> ParamLimits {
    let eos = EosTokens { silent: [2].into(), told: [7].into() };
    let processors = LogitsProcessors::new().with("even", || Even).with("add", || Add);
    ParamLimits { vocab_size: 100, max_logprobs: 20, eos, processors, ..ParamLimits::default() }
}

fn list(json: &str) -> Vec<Value> {
    serde_json::from_str(json).unwrap()
}

fn check(field: &str, value: &Value) -> Result<CheckedParams, ParamError> {
    let given = Map::from_iter([(field.to_owned(), value.clone())]);
    SamplingParams::default().with_json(&given).and_then(|params| params.check(&limits()))
}

#[test]
fn every_field_has_its_default_its_range_and_its_type() {
    let defaults = serde_json::to_value(SamplingParams::default()).unwrap();
    for row in ROWS {
        let field = row.field;
        assert_eq!(defaults[field], serde_json::from_str::<Value>(row.default).unwrap(), "{field}");
        check(field, &Value::Null).unwrap_or_else(|error| panic!("{field} = null: {error}"));
        for value in list(row.allowed) {
            check(field, &value).unwrap_or_else(|error| panic!("{field} = {value}: {error}"));
        }
        for value in list(row.outside) {
            let error = check(field, &value).expect_err(&format!("{field} = {value}"));
            let has_rule = matches!(&error, ParamError::Value { rule, .. } if !rule.is_empty());
            assert!(has_rule && error.field() == field, "{field} = {value}: {error}");
            assert!(error.to_string().starts_with(field), "{error}");
        }
        for value in list(row.other_type) {
            let error = check(field, &value).expect_err(&format!("{field} = {value}"));
            let is_of_type = matches!(error, ParamError::Type { .. } | ParamError::Form { .. });
            assert!(is_of_type && error.field() == field, "{field}: {error}");
        }
    }
}

#[test]
fn every_field_is_in_the_table() {
    let listed = ROWS.iter().map(|row| row.field);
    let (mut listed, mut all) = (listed.collect::<Vec<_>>(), SamplingParams::field_names().to_vec());
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all);
}

#[test]
fn numbers_that_json_has_and_no_field_holds_are_of_another_type() {
    for field in ["n", "max_tokens", "min_tokens", "seed", "top_k", "logprobs"] {
        let given = serde_json::from_str(&format!(r#"{{"{field}": {HUGE}}}"#)).unwrap();
        let error = SamplingParams::default().with_json(&given).unwrap_err();
        assert!(matches!(error, ParamError::Type { .. }) && error.field() == field, "{field}: {error}");
    }
}

/// BR-35: values that clients send, with one meaning.
#[test]
fn br_35_zero_and_minus_one_have_one_meaning() {
    for off in [-1, 0] {
        assert_eq!(check("top_k", &json!(off)).unwrap().row_sampling(0).top_k, 0);
    }
    for (field, value) in [("top_p", json!(0)), ("top_k", json!(-2)), ("min_p", json!(1.1)), ("n", json!(0))]
    {
        assert_eq!(check(field, &value).unwrap_err().field(), field);
    }
    let too_large = serde_json::from_str::<Value>("1e999").map_or(json!(f64::MAX), |value| value);
    for temperature in [json!(-0.1), too_large] {
        assert_eq!(check("temperature", &temperature).unwrap_err().field(), "temperature");
    }
}

#[test]
fn a_bias_is_clamped_and_a_greedy_row_has_no_filters() {
    let row = check("logit_bias", &json!({"5": 1e9, "6": -1e9, "7": 0.5})).unwrap().row_sampling(0);
    assert_eq!(row.logit_bias, [(5, 100.0), (6, -100.0), (7, 0.5)]);
    let greedy = json!({"temperature": 1e-6, "top_p": 0.5, "top_k": 3, "min_p": 0.4});
    let params = SamplingParams::default().with_json(greedy.as_object().unwrap()).unwrap();
    let row = params.check(&limits()).unwrap().row_sampling(0);
    assert_eq!((row.temperature, row.top_p, row.top_k, row.min_p), (0.0, 1.0, 0, 0.0));
}

#[test]
fn a_logits_processor_is_refused_with_those_that_there_are() {
    let message = |value| check("logits_processors", &value).unwrap_err().to_string();
    assert_eq!(message(json!(["odd"])), "logits_processors is odd: expected one of even, add");
    let args = json!([{"name": "add", "args": {"by": 1}}]);
    assert_eq!(message(args), r#"logits_processors is add with {"by":1}: expected a number"#);
    assert_eq!(
        message(json!(["even", "even"])),
        "logits_processors is even, twice: expected each of them once"
    );
    let none = SamplingParams {
        logits_processors: vec![LogitsProcessorCall::new("even", ())],
        ..Default::default()
    };
    let message = none.check(&ParamLimits { processors: LogitsProcessors::new(), ..limits() }).unwrap_err();
    let expected = "logits_processors is even: expected none, since this engine has none registered";
    assert_eq!(message.to_string(), expected);
    let both = json!([{"name": "add", "args": 2}, "even"]);
    let row = check("logits_processors", &both).unwrap().row_sampling(0);
    assert_eq!(row.processors.iter().map(|call| call.processor).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn several_outputs_need_a_temperature() {
    let given = json!({"n": 2, "temperature": 0});
    let error = SamplingParams::default().with_json(given.as_object().unwrap()).unwrap().check(&limits());
    let error = error.unwrap_err();
    assert_eq!(error.field(), "n");
    let given = json!({"n": 2, "best_of": 2, "temperature": 0.5});
    assert!(
        SamplingParams::default().with_json(given.as_object().unwrap()).unwrap().check(&limits()).is_ok()
    );
}

/// Writes down what is logged: level and message.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut lines = self.0.lock().unwrap();
        write!(lines, "{} ", event.metadata().level()).unwrap();
        event.record(&mut |_: &tracing::field::Field, value: &dyn Debug| write!(lines, "{value:?}").unwrap());
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// What is logged on this thread while `run` runs.
fn logged(run: impl FnOnce()) -> String {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), run);
    lines.0.lock().unwrap().clone()
}

#[test]
fn a_tiny_temperature_is_raised_with_a_warning() {
    let temperature = |given: f64| check("temperature", &json!(given)).unwrap().row_sampling(0).temperature;
    let warned = logged(|| assert_eq!(temperature(0.005), 0.01));
    assert!(warned.contains("WARN") && warned.contains("temperature 0.005 is raised to 0.01"), "{warned}");
    let silent = logged(|| assert_eq!((temperature(0.01), temperature(1e-6)), (0.01, 0.0)));
    assert_eq!(silent, "");
}

#[test]
fn fields_of_vllm_without_code_are_refused_by_name() {
    for (field, value) in [
        ("thinking_token_budget", json!(100)),
        ("repetition_detection", json!({"max_pattern_size": 4})),
        ("logprob_token_ids", json!([1, 2])),
        ("flat_logprobs", json!(true)),
        ("extra_args", json!({"a": 1})),
    ] {
        let error = check(field, &value).unwrap_err();
        assert!(matches!(error, ParamError::NotBuilt { .. }), "{error}");
        assert_eq!(error.field(), field);
        let message = format!("{field} = {value} is not built yet");
        assert!(error.to_string().starts_with(&message), "{error}");
        check(field, &Value::Null).unwrap();
    }
    assert!(check("flat_logprobs", &json!(false)).is_ok(), "what asks for nothing is passed over");
    assert!(matches!(check("max_new_tokens", &json!(5)).unwrap_err(), ParamError::Unknown { .. }));
}
