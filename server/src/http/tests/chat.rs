use axum::http::StatusCode;
use quire_engine::EngineOptions;
use quire_engine::chat::{ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

use super::rig::{ANSWER, Rig};
use crate::http::HttpSettings;

const PATH: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

#[tokio::test]
async fn an_answer_has_its_message() {
    let rig = Rig::new();
    let (status, body) = rig.post(PATH, json!({"messages": hello(), "temperature": 0})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert!(body["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("tiny")));
    let choice = json!({
        "index": 0, "message": {"role": "assistant", "content": ANSWER}, "logprobs": null,
        "finish_reason": "stop", "stop_reason": null,
    });
    assert_eq!(body["choices"], json!([choice]));
    assert_eq!(body["usage"]["completion_tokens"], 15);
    rig.check_alive().await;
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_leaves_out_empty_keys() {
    let rig = Rig::new();
    let events = rig.stream(PATH, json!({"messages": hello(), "stream": true, "n": 2, "seed": 3})).await;
    let mut texts = [String::new(), String::new()];
    for (index, text) in texts.iter_mut().enumerate() {
        let own: Vec<_> = events.iter().filter(|event| event["choices"][0]["index"] == index).collect();
        let first = json!({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null});
        assert_eq!(own[0]["choices"][0], first);
        assert_eq!(own[0]["object"], "chat.completion.chunk");
        for event in &own[1..] {
            assert!(event.get("usage").is_none() && event["choices"][0]["delta"].get("role").is_none());
            text.push_str(event["choices"][0]["delta"]["content"].as_str().expect("a text"));
        }
        assert_eq!(own.last().expect("some")["choices"][0]["finish_reason"], "stop");
    }
    assert_eq!(texts, [ANSWER, ANSWER]);
    rig.check_alive().await;
}

#[tokio::test]
async fn an_empty_options_object_brings_usage_only_for_old_clients() {
    let body = json!({"messages": hello(), "stream": true, "stream_options": {}});
    let events = Rig::new().stream(PATH, body.clone()).await;
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let mut settings = crate::http::HttpSettings::new(vec!["tiny".to_owned()]);
    settings.includes_usage = true;
    let old = Rig::with(settings, quire_engine::EngineOptions::new("tiny"));
    let events = old.stream(PATH, body).await;
    assert_eq!(events.last().expect("usage")["usage"]["completion_tokens"], 15);
}

#[tokio::test]
async fn a_stop_string_is_cut_and_named() {
    let rig = Rig::new();
    let (_, body) = rig.post(PATH, json!({"messages": hello(), "stop": ["wör", "x"]})).await;
    let choice = &body["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["stop_reason"]), (&json!("Hello, "), &json!("wör")));
}

#[tokio::test]
async fn log_probabilities_have_bytes() {
    let rig = Rig::new();
    let body = json!({"messages": hello(), "logprobs": true, "top_logprobs": 2, "max_tokens": 2});
    let (status, body) = rig.post(PATH, body).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let content = body["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.len(), 2);
    assert_eq!((&content[0]["token"], &content[0]["bytes"]), (&json!("H"), &json!([72])));
    assert_eq!(content[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
}

/// A context of 200: as many tokens as must come have room in it, whether a limit is given or not.
#[tokio::test]
async fn tokens_that_must_come_have_room() {
    let rig = Rig::new();
    let (_, body) = rig.post("/tokenize", json!({"messages": hello()})).await;
    let room = 200 - body["count"].as_u64().expect("a number");
    for (min_tokens, expected) in [(room, StatusCode::OK), (room + 1, StatusCode::BAD_REQUEST)] {
        let body = json!({"messages": hello(), "min_tokens": min_tokens});
        let (status, body) = rig.post(PATH, body).await;
        assert_eq!(status, expected, "{body}");
        if status != StatusCode::OK {
            assert_eq!(body["error"]["param"], "min_tokens", "{body}");
        }
    }
    // The default of max_tokens is cut to what fits, min_tokens is not.
    let body = json!({"prompt": "x".repeat(195), "min_tokens": 6});
    let (status, body) = rig.post("/v1/completions", body).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("min_tokens")), "{body}");
}

#[tokio::test]
async fn a_conversation_that_is_none_is_refused() {
    let rig = Rig::new();
    for messages in
        [json!([]), json!("a"), Value::Null, json!([{"role": "user", "content": [{"type": "text"}]}])]
    {
        let (status, body) = rig.post(PATH, json!({"messages": messages})).await;
        assert!(
            status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED,
            "{messages}: {status} {body}"
        );
        rig.check_alive().await;
    }
}

#[tokio::test]
async fn an_image_is_not_built() {
    let rig = Rig::new();
    let content = json!([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]);
    let (status, body) = rig.post(PATH, json!({"messages": [{"role": "user", "content": content}]})).await;
    assert_eq!(
        (status, &body["error"]["param"]),
        (StatusCode::NOT_IMPLEMENTED, &json!("messages")),
        "{body}"
    );
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])
}

fn reading(answer: &str) -> Rig {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.reading.tool_format = Some(ToolFormat::Hermes);
    settings.reading.reasoning_format = Some(ReasoningFormat::Qwen3);
    Rig::saying(answer, settings, EngineOptions::new("tiny"))
}

/// What the deltas of a stream say, joined, and why it ended.
fn joined(events: &[Value]) -> (Value, Value) {
    let mut message = json!({"role": null, "content": "", "reasoning_content": "", "tool_calls": []});
    let append = |to: &mut Value, from: &Value| {
        let text = format!("{}{}", to.as_str().unwrap_or_default(), from.as_str().unwrap_or_default());
        *to = text.into();
    };
    let mut reason = Value::Null;
    for choice in events.iter().map(|event| &event["choices"][0]) {
        let delta = &choice["delta"];
        for key in ["content", "reasoning_content"] {
            append(&mut message[key], &delta[key]);
        }
        if delta["role"].is_string() {
            message["role"] = delta["role"].clone();
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("a place") as usize;
            let calls = message["tool_calls"].as_array_mut().expect("a list");
            if index == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
            }
            append(&mut calls[index]["arguments"], &call["function"]["arguments"]);
        }
        reason = choice["finish_reason"].clone();
    }
    (message, reason)
}

#[tokio::test]
async fn calls_and_reasoning_are_told_apart_in_both_forms() {
    let answer = "<think>\nhm\n</think>\n\nWell.<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let rig = reading(answer);
    let body = json!({"messages": hello(), "tools": tools(), "max_tokens": 150});
    let (status, whole) = rig.post(PATH, body.clone()).await;
    assert_eq!(status, StatusCode::OK, "{whole}");
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    let message = &choice["message"];
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "add", "arguments": "{\"a\": 1}"}));
    assert_eq!(message["reasoning_content"], message["reasoning"]);
    assert!(message["reasoning_content"].as_str().is_some_and(|text| text.contains("hm")), "{message}");
    let mut streamed = body;
    streamed["stream"] = true.into();
    let (said, reason) = joined(&rig.stream(PATH, streamed).await);
    assert_eq!(reason, "tool_calls");
    assert_eq!(
        (&said["content"], &said["reasoning_content"]),
        (&message["content"], &message["reasoning_content"])
    );
    assert_eq!(said["tool_calls"], json!([{"name": "add", "arguments": "{\"a\": 1}"}]));
    // Without tools the same text is content.
    let (_, plain) = rig.post(PATH, json!({"messages": hello(), "max_tokens": 150})).await;
    assert!(
        plain["choices"][0]["message"]["content"].as_str().is_some_and(|text| text.contains("<tool_call>"))
    );
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");
}

/// Neither in text nor in log-probabilities, streamed or not; the usage counts it.
#[tokio::test]
async fn reasoning_that_is_not_wanted_is_left_out_everywhere() {
    let tokens = |choice: &Value| -> Vec<String> {
        let content = choice["logprobs"]["content"].as_array().into_iter().flatten();
        content.map(|token| token["token"].as_str().expect("a text").to_owned()).collect()
    };
    for (answer, has_reasoning, content) in [
        ("<think>hm</think>Well.", true, "Well."),
        (" <think>hm</think>", true, ""),
        ("<think>hm", true, ""),
        ("<thin air", false, "<thin air"),
        ("", false, ""),
    ] {
        let rig = reading(answer);
        let body = json!({"messages": hello(), "logprobs": true, "max_tokens": 100, "temperature": 0, "include_reasoning": false});
        let (status, whole) = rig.post(PATH, body.clone()).await;
        assert_eq!(status, StatusCode::OK, "{whole}");
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), content, "{whole}");
        assert!(choice["message"].get("reasoning").is_none(), "{whole}");
        let shown = tokens(choice).concat();
        assert_eq!(shown.replace("<|im_end|>", ""), content, "{whole}");
        assert_eq!(whole["usage"]["completion_tokens"], answer.len() + 1);
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({"include_usage": true});
        let events = rig.stream(PATH, streamed).await;
        let (usage, events) = events.split_last().expect("usage comes last");
        assert_eq!(usage["usage"], whole["usage"]);
        let (said, reason) = joined(events);
        assert_eq!((said["content"].as_str(), &reason), (Some(content), &choice["finish_reason"]));
        assert_eq!(said["reasoning_content"], "");
        let told: Vec<String> = events.iter().flat_map(|event| tokens(&event["choices"][0])).collect();
        assert_eq!(told, tokens(choice), "{answer}");
        // The first and the last piece say other things.
        let num_empty = events.iter().filter(|event| event["choices"][0]["delta"]["content"] == "").count();
        assert!(num_empty <= 2, "{events:?}");
        let mut with = body;
        with["include_reasoning"] = true.into();
        let (_, with) = rig.post(PATH, with).await;
        assert_eq!(tokens(&with["choices"][0]).len(), answer.len() + 1, "{with}");
        assert_eq!(with["choices"][0]["message"]["reasoning"].is_string(), has_reasoning, "{with}");
    }
}

/// A stream of a search has each message whole.
#[tokio::test]
async fn a_search_gives_its_best_messages_at_once() {
    let rig = reading("<think>hm");
    let body = json!({"messages": hello(), "use_beam_search": true, "n": 2, "max_completion_tokens": 4, "temperature": 0});
    let (status, whole) = rig.post(PATH, body.clone()).await;
    assert_eq!(status, StatusCode::OK, "{whole}");
    let choices = whole["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 2, "{whole}");
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let events = rig.stream(PATH, streamed).await;
    let (usage, events) = events.split_last().expect("usage comes last");
    assert_eq!(usage["usage"], whole["usage"]);
    for (index, choice) in choices.iter().enumerate() {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index).cloned();
        let (said, reason) = joined(&own.collect::<Vec<_>>());
        assert_eq!(said["content"].as_str(), choice["message"]["content"].as_str(), "{whole}");
        assert_eq!((&said["role"], &reason), (&json!("assistant"), &choice["finish_reason"]));
    }
    for (field, value, status) in [
        ("n", json!(11), 400),
        ("stop", json!("a"), 501),
        ("response_format", json!({"type": "json_object"}), 501),
        ("logprobs", json!(true), 501),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        let (given, answer) = rig.post(PATH, wrong).await;
        assert_eq!(given.as_u16(), status, "{field}: {answer}");
    }
    let required =
        json!({"messages": hello(), "use_beam_search": true, "tools": tools(), "tool_choice": "required"});
    assert_eq!(rig.post(PATH, required).await.0, StatusCode::NOT_IMPLEMENTED);
    rig.idle().await;
}

#[tokio::test]
async fn tools_are_at_most_so_many() {
    let rig = Rig::new();
    let tool = |name: usize| json!({"type": "function", "function": {"name": format!("f{name}")}});
    let tools: Value = (0..20_000).map(tool).collect();
    for (choice, field, said) in [
        (json!("none"), "tools", "tools: 20000 tools: expected at most 1024"),
        (json!("auto"), "tool_choice", "tool_choice auto needs a server"),
    ] {
        let body = json!({"messages": hello(), "tools": tools, "tool_choice": choice});
        let (status, body) = rig.post(PATH, body).await;
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{body}");
        assert!(body["error"]["message"].as_str().is_some_and(|message| message.starts_with(said)), "{body}");
    }
}

#[tokio::test]
async fn tools_need_a_server_that_reads_calls() {
    let rig = Rig::new();
    let (status, body) = rig.post(PATH, json!({"messages": hello(), "tools": tools()})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("tool_choice")), "{body}");
    let (status, _) =
        rig.post(PATH, json!({"messages": hello(), "tools": tools(), "tool_choice": "none"})).await;
    assert_eq!(status, StatusCode::OK);
}

/// The model thinks first, in no form; what it says then has the form.
#[tokio::test]
async fn reasoning_comes_before_a_form_and_before_calls_that_must_be_made() {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false});
    let form = json!({"type": "json_schema", "json_schema": {"name": "form", "schema": schema}});
    let named = json!({"type": "function", "function": {"name": "add"}});
    for (answer, fields, content, arguments) in [
        (
            "<think>hm: {\"b\"</think>{\"a\": 1} or so",
            json!({"response_format": form}),
            Some("{\"a\": 1}"),
            None,
        ),
        ("{\"a\": 1}", json!({"structured_outputs": {"json": schema}}), Some("{\"a\": 1}"), None),
        (
            "<think>hm</think>maybe",
            json!({"structured_outputs": {"choice": ["yes", "may"]}}),
            Some("may"),
            None,
        ),
        (
            "<think>hm</think>[{\"name\": \"add\", \"parameters\": {\"a\": 1}}] or so",
            json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false}),
            None,
            Some("{\"a\": 1}"),
        ),
        (
            "<think>hm</think>{\"a\": 1} or so",
            json!({"tools": tools(), "tool_choice": named}),
            None,
            Some("{\"a\": 1}"),
        ),
    ] {
        let rig = reading(answer);
        let mut body = json!({"messages": hello(), "max_tokens": 150, "temperature": 0});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let (status, whole) = rig.post(PATH, body.clone()).await;
        assert_eq!(status, StatusCode::OK, "{whole}");
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["content"].as_str().filter(|text| !text.is_empty()), content, "{whole}");
        assert_eq!(message["reasoning_content"].is_string(), answer.starts_with("<think>"), "{whole}");
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(call["arguments"].as_str(), arguments, "{whole}");
        body["stream"] = true.into();
        let (said, _) = joined(&rig.stream(PATH, body).await);
        assert_eq!(said["content"].as_str().unwrap_or_default(), content.unwrap_or_default());
        let reasoning = message["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(said["reasoning_content"].as_str(), Some(reasoning));
    }
}

/// Wherever an answer that has to be calls is cut, its parts are no content.
#[tokio::test]
async fn calls_that_must_be_made_and_are_cut_are_no_content() {
    let rig = reading(
        "[{\"name\": \"add\", \"parameters\": {\"a\": 1}} ,\n  {\"name\": \"add\", \"parameters\": {}}]",
    );
    for max_tokens in [1, 5, 15, 38, 41, 50, 75] {
        let mut body = json!({
            "messages": hello(), "tools": tools(), "tool_choice": "required", "max_tokens": max_tokens, "temperature": 0,
        });
        let (status, whole) = rig.post(PATH, body.clone()).await;
        assert_eq!(status, StatusCode::OK, "{whole}");
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), "", "{whole}");
        body["stream"] = true.into();
        let (said, reason) = joined(&rig.stream(PATH, body).await);
        assert_eq!((&said["content"], &reason), (&json!(""), &choice["finish_reason"]), "{said}");
        let num_calls = choice["message"]["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(said["tool_calls"].as_array().map(Vec::len), Some(num_calls));
        assert!(num_calls > 0 || max_tokens < 30, "{whole}");
    }
}
