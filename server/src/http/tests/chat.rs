use axum::http::StatusCode;
use serde_json::{Value, json};

use super::rig::{ANSWER, Rig};

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
