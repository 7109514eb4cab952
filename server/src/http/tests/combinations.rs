//! Odd combinations of fields: a stream and a whole answer say the same, or refuse the same.

use axum::http::StatusCode;
use quire_engine::EngineOptions;
use quire_engine::chat::{ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

use super::rig::{Parts, Rig, post, read};
use crate::http::HttpSettings;

/// What each field may be; null leaves it out.
type Table = &'static [(&'static str, &'static str)];

const BOTH: Table = &[
    ("n", "[1, 1, 2, 3]"),
    ("temperature", "[0.7, 0.7, 0]"),
    ("seed", "[1]"),
    ("stop", r#"[null, null, null, "l", ["wör", "W"], ["\"", "</think>"], "!"]"#),
    ("include_stop_str_in_output", "[null, true]"),
    ("stop_token_ids", "[null, null, [111], [2]]"),
    ("max_tokens", "[1, 5, 30, 90]"),
    ("min_tokens", "[null, 0, 1, 4, 20]"),
    ("ignore_eos", "[null, null, null, true]"),
    ("skip_special_tokens", "[null, null, false]"),
    ("bad_words", r#"[null, null, ["ello"], ["H"]]"#),
    ("logit_bias", r#"[null, {"72": -100}]"#),
    ("allowed_token_ids", "[null, null, null, null, [75, 104, 111, 114, 2]]"),
    ("return_tokens_as_token_ids", "[null, true]"),
    ("guided_regex", r#"[null, null, null, null, "[A-Z][a-z]{2,5}", "(a|b)+c?"]"#),
    ("guided_choice", r#"[null, null, null, null, null, ["Hell", "Hello", "<think>"]]"#),
    ("response_format", r#"[null, null, null, null, null, {"type": "json_object"}]"#),
    ("use_beam_search", "[null, null, null, null, null, null, null, true]"),
];

const OF_COMPLETIONS: Table = &[
    ("prompt", r#"["abc", ["ab", "c本"], [72, 233, 111], "本"]"#),
    ("echo", "[null, true]"),
    ("logprobs", "[null, 0, 2]"),
    ("detokenize", "[null, null, null, false]"),
    ("truncate_prompt_tokens", "[null, null, 2]"),
];

const OF_CHATS: Table = &[
    ("logprobs", "[null, true]"),
    ("include_reasoning", "[null, false]"),
    ("parallel_tool_calls", "[null, false]"),
    (
        "tools",
        r#"[null, [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]]"#,
    ),
    ("tool_choice", r#"[null, null, "none", "required", {"type": "function", "function": {"name": "add"}}]"#),
];

/// Numbers that look drawn, the same each time.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn body(&mut self, tables: &[Table]) -> Value {
        let mut body = json!({});
        for (field, values) in tables.iter().copied().flatten() {
            let values: Vec<Value> = serde_json::from_str(values).expect(field);
            let value = &values[self.below(values.len())];
            if !value.is_null() {
                body[*field] = value.clone();
            }
        }
        body
    }
}

fn rig(answer: &str) -> Rig {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.reading.tool_format = Some(ToolFormat::Hermes);
    settings.reading.reasoning_format = Some(ReasoningFormat::Qwen3);
    let rig = Rig::saying(answer, settings, EngineOptions::new("tiny"));
    assert_eq!(Parts::default().max_model_len, 200, "the answers fit");
    rig
}

/// Puts a list behind another one, a text behind another one.
fn append(to: &mut Value, more: &Value) {
    match (&mut *to, more) {
        (_, Value::Null) => {}
        (Value::Array(list), Value::Array(more)) => list.extend(more.iter().cloned()),
        (Value::String(text), Value::String(more)) => text.push_str(more),
        (Value::Object(fields), Value::Object(more)) => {
            more.iter()
                .for_each(|(name, more)| append(fields.entry(name.clone()).or_insert(Value::Null), more));
        }
        _ => *to = more.clone(),
    }
}

/// A call is told in parts, by its place.
fn append_calls(calls: &mut Vec<Value>, delta: &Value) {
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let index = call["index"].as_u64().expect("a place") as usize;
        calls.resize(calls.len().max(index + 1), json!({}));
        append(&mut calls[index], &json!({"function": call["function"]}));
    }
}

/// The choices of a stream, each joined to one.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().expect("choices")) {
        let index = choice["index"].as_u64().expect("a place") as usize;
        choices.resize(choices.len().max(index + 1), json!({"calls": []}));
        let all = &mut choices[index];
        assert!(all["finish_reason"].is_null(), "nothing follows the end");
        let mut calls = all["calls"].as_array().expect("a list").clone();
        append_calls(&mut calls, &choice["delta"]);
        all["calls"] = calls.into();
        let delta = &choice["delta"];
        let said = json!({"content": delta["content"], "reasoning": delta["reasoning"], "text": choice["text"],
            "logprobs": choice["logprobs"], "finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]});
        append(all, &said);
    }
    choices
}

/// What the two forms have in common.
fn said(choice: &Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| if value == &json!([]) { Value::Null } else { value.clone() };
    json!({
        "text": text(&choice["text"]), "content": text(&choice["content"]), "reasoning": text(&choice["reasoning"]),
        "calls": choice["calls"], "finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"],
        // No tokens are no list in a stream.
        "logprobs": choice["logprobs"].as_object().into_iter().flatten().map(|(_, value)| list(value))
            .filter(|list| !list.is_null()).collect::<Value>(),
    })
}

/// A whole choice in the form of a joined one.
fn flattened(choice: &Value) -> Value {
    let (mut flat, message) = (choice.clone(), &choice["message"]);
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    flat["calls"] = calls.map(|call| json!({"function": call["function"]})).collect();
    (flat["content"], flat["reasoning"]) = (message["content"].clone(), message["reasoning"].clone());
    flat
}

/// Whether the answer was a good one.
async fn check(rig: &Rig, path: &str, body: Value) -> bool {
    let (status, whole) = rig.post(path, body.clone()).await;
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    if status != StatusCode::OK {
        let response = rig.send(post(path, streamed.to_string())).await;
        assert!(
            status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED,
            "{body}: {status} {whole}"
        );
        if response.status() != StatusCode::OK {
            assert_eq!(read(response).await, (status, whole), "{body}");
        } else {
            // It came to light later: the last event says so.
            let text = read(response).await.1;
            let message = whole["error"]["message"].as_str().expect("a message");
            let message = message.split(" has no token left").last().unwrap_or_default();
            assert!(text.as_str().expect("events").contains(message), "{body}: {text} {message}");
        }
        return false;
    }
    let events = rig.stream(path, streamed).await;
    let (usage, events) = events.split_last().expect("usage comes last");
    assert_eq!(usage["usage"], whole["usage"], "{body}");
    let choices = whole["choices"].as_array().expect("choices");
    let streamed: Vec<Value> = joined(events).iter().map(said).collect();
    let choices: Vec<Value> = choices.iter().map(|choice| said(&flattened(choice))).collect();
    assert_eq!(streamed, choices, "{body}");
    true
}

async fn check_all(answers: &[&str], path: &str, base: Value, tables: &[Table], num_bodies: usize) {
    let mut num_good = 0;
    for (place, answer) in answers.iter().enumerate() {
        let (rig, mut draws) = (rig(answer), Draws(place as u64));
        for _ in 0..num_bodies {
            let mut body = draws.body(tables);
            base.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
            num_good += usize::from(check(&rig, path, body).await);
        }
        rig.idle().await;
        assert_eq!(rig.control.violations(), []);
    }
    let num_all = answers.len() * num_bodies;
    assert!(num_good > num_all / 5, "{num_good} of {num_all} bodies are good");
}

#[tokio::test]
async fn completions_say_the_same_in_both_forms() {
    let answers = ["Hello, wörld! Hello.", "aab", ""];
    check_all(&answers, "/v1/completions", json!({}), &[BOTH, OF_COMPLETIONS], 150).await;
}

#[tokio::test]
async fn chats_say_the_same_in_both_forms() {
    let answers = [
        "<think>\nhm</think>\n\nWell.<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        "<think>Hello, wörld!",
        " Hello<tool_call>no</tool_call>",
        "{\"a\": 1}",
    ];
    let base = json!({"messages": [{"role": "user", "content": "Hi"}]});
    check_all(&answers, "/v1/chat/completions", base, &[BOTH, OF_CHATS], 120).await;
}
