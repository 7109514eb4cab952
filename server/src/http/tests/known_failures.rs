//! What has failed in other engines, by the names of their list: those that neither `errors`, `completions`,
//! `connections` nor `metrics` has.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures_util::future::join_all;
use quire_models::testing::TinyTokenizer;
use serde_json::{Value, json};

use super::rig::{Parts, Rig, post, read};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

/// What a parrot says in `num` tokens.
fn said(prompt: &str, num: usize) -> String {
    prompt.chars().cycle().take(num).collect()
}

#[tokio::test]
async fn br_01_a_prompt_larger_than_the_pool_is_refused_and_holds_up_nobody() {
    let rig = Parts { num_blocks: 8, block_size: 16, max_model_len: 256, ..Parts::default() }.start();
    let (large, small) = tokio::join!(
        rig.post(COMPLETIONS, json!({"prompt": "x".repeat(200)})),
        rig.post(COMPLETIONS, json!({"prompt": "x".repeat(10)})),
    );
    assert_eq!((large.0, &large.1["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")));
    let message = large.1["error"]["message"].as_str().expect("a text");
    assert!(message.contains("13") && message.contains('8'), "{message}");
    assert_eq!(small.0, StatusCode::OK, "{}", small.1);
    assert!(rig.control.batches().iter().all(|batch| !batch.rows.is_empty()), "a step had nothing to do");
    rig.check_alive().await;
}

#[tokio::test]
async fn br_05_the_last_request_ends_at_the_edge_of_the_pool() {
    let rig = Parts { num_blocks: 8, block_size: 16, max_model_len: 256, ..Parts::parrot() }.start();
    let body = json!({"prompt": "x".repeat(100), "max_tokens": 60, "stream": false});
    let (status, body) = rig.post(COMPLETIONS, body).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(
        (&body["choices"][0]["finish_reason"], &body["usage"]["completion_tokens"]),
        (&json!("length"), &json!(28))
    );
    let (status, body) = rig.post(COMPLETIONS, json!({"prompt": "0123456789", "max_tokens": 5})).await;
    assert_eq!((status, &body["choices"][0]["text"]), (StatusCode::OK, &json!("01234")));
    rig.idle().await;
}

#[tokio::test]
async fn br_09_two_requests_may_have_one_name() {
    let rig = Parts::parrot().start();
    let ask = async |prompt: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 64}).to_string();
        let mut request = post(COMPLETIONS, body);
        request.headers_mut().insert("x-request-id", "id".parse().expect("a value"));
        read(rig.send(request).await).await
    };
    let prompts = ["abc", "defgh"];
    let watch = async {
        for _ in 0..50 {
            let stats = rig.service.engine.stats();
            assert!(stats.num_running + stats.num_waiting <= 2, "{stats:?}");
            tokio::task::yield_now().await;
        }
    };
    let (first, second, ()) = tokio::join!(ask(prompts[0]), ask(prompts[1]), watch);
    for ((status, body), prompt) in [first, second, ask("ij").await].into_iter().zip(["abc", "defgh", "ij"]) {
        assert_eq!((status, &body["id"]), (StatusCode::OK, &json!("cmpl-id")), "{body}");
        assert_eq!(body["choices"][0]["text"], said(prompt, 64));
    }
    rig.idle().await;
}

#[tokio::test]
async fn br_39_a_chat_may_fill_the_context() {
    let rig = Parts::parrot().start();
    let messages = hello();
    for limit in [json!({}), json!({"max_tokens": null}), json!({"max_completion_tokens": null})] {
        let mut body = limit.clone();
        body["messages"] = messages.clone();
        body["ignore_eos"] = json!(true);
        let (status, body) = rig.post(CHAT, body).await;
        assert_eq!(
            (status, &body["usage"]["total_tokens"]),
            (StatusCode::OK, &json!(200)),
            "{limit}: {body}"
        );
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
    for (limit, field) in [
        (json!(0), "max_tokens"),
        (json!(1_000_000_000), "max_completion_tokens"),
        (json!(-1), "max_completion_tokens"),
    ] {
        let (status, body) = rig.post(CHAT, json!({"messages": messages, field: limit})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{field} {limit}: {body}");
    }
    rig.idle().await;
}

#[tokio::test]
async fn br_43_streams_of_all_lengths_do_not_mix() {
    let rig = Parts::parrot().start();
    let prompts: Vec<String> =
        (0..8).map(|i| char::from(b'a' + i).to_string() + &"0123456789".repeat(2 * usize::from(i))).collect();
    let streams = prompts.iter().map(|prompt| {
        rig.stream(COMPLETIONS, json!({"prompt": prompt, "max_tokens": 20, "temperature": 0, "stream": true}))
    });
    let mut ids = std::collections::BTreeSet::new();
    for (events, prompt) in join_all(streams).await.into_iter().zip(&prompts) {
        let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, said(prompt, 20));
        assert!(
            events
                .iter()
                .all(|event| event["id"] == events[0]["id"] && event["created"] == events[0]["created"])
        );
        ids.insert(events[0]["id"].as_str().map(str::to_owned));
    }
    assert_eq!(ids.len(), 8);
    rig.idle().await;
}

#[tokio::test]
async fn br_44_what_a_template_refuses_is_said_in_its_words() {
    let chat_template = "{% for message in messages %}\
        {% if message['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
        {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
        {{ message['content'] }}{% endfor %}";
    let rig = Parts { chat_template: chat_template.to_owned(), ..Parts::default() }.start();
    let message = |role: &str| json!({"role": role, "content": "a"});
    for (messages, said) in [
        ([message("user"), message("user")], "roles must alternate"),
        ([message("system"), message("user")], "no system role"),
    ] {
        for is_streamed in [false, true] {
            let (status, body) = rig.post(CHAT, json!({"messages": messages, "stream": is_streamed})).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
            assert!(
                body["error"]["message"].as_str().is_some_and(|message| message.contains(said)),
                "{body}"
            );
        }
        rig.check_alive().await;
    }
    let (status, body) = rig.post(CHAT, json!({"messages": [message("user"), message("assistant")]})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let (status, body) =
        rig.post(CHAT, json!({"messages": [message("user")], "chat_template": "{{ 1 | unheard_of }}"})).await;
    assert!(status.is_client_error(), "{status} {body}");
    rig.check_alive().await;
}

/// Adapters are not built, so none is taken for another.
#[tokio::test]
async fn br_16_adapters_are_refused_as_not_built() {
    let rig = Rig::new();
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let (status, body) = rig.post(path, json!({"lora_name": "x", "lora_path": "/x"})).await;
        assert_eq!(status, StatusCode::NOT_IMPLEMENTED, "{body}");
    }
    let (status, _) = rig.post(COMPLETIONS, json!({"model": "x", "prompt": "a"})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    rig.check_alive().await;
}

#[tokio::test]
async fn br_46_a_form_that_cannot_be_is_refused_within_a_second() {
    let rig = Rig::new();
    let schema =
        |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let long: Vec<String> = (0..80_000).map(|i| format!("value number {i}")).collect();
    for (field, value) in [
        ("response_format", schema(json!({"type": 5}))),
        ("response_format", schema(json!({"$ref": "#/$defs/none"}))),
        ("response_format", schema(json!({"enum": long}))),
        ("guided_json", json!("{")),
        ("guided_regex", json!("(")),
        ("guided_grammar", json!("start: nothing")),
        ("structured_outputs", json!({"regex": "("})),
    ] {
        for is_streamed in [false, true] {
            let started = Instant::now();
            let body = json!({"messages": hello(), field: value, "stream": is_streamed});
            let (status, body) = rig.post(CHAT, body).await;
            assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{body}");
            // A second on a machine with nothing else to do; not to be mistaken for one that has no end.
            assert!(started.elapsed() < Duration::from_secs(20), "{field}: {:?}", started.elapsed());
        }
        rig.check_alive().await;
    }
}

/// The model says line breaks as long as it may.
#[tokio::test]
async fn br_46_white_space_ends_and_what_is_cut_says_so() {
    let script = |_: &[u32], _: usize| TinyTokenizer::byte(b'\n');
    let rig = Parts { script: Box::new(script), ..Parts::default() }.start();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let ask = |max_tokens: u64| {
        rig.post(CHAT, json!({"messages": hello(), "response_format": format, "max_tokens": max_tokens}))
    };
    let (status, whole) = ask(64).await;
    let choice = &whole["choices"][0];
    assert_eq!((status, &choice["finish_reason"]), (StatusCode::OK, &json!("stop")), "{whole}");
    let said: Value =
        serde_json::from_str(choice["message"]["content"].as_str().expect("a text")).expect("JSON");
    assert!(said["a"].is_number(), "{said}");
    let (_, cut) = ask(5).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
    rig.idle().await;
}

#[tokio::test]
async fn a_refusal_names_the_field_that_the_client_wrote() {
    let rig = Rig::new();
    for (field, more) in [
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 21})),
        ("max_completion_tokens", json!({"max_completion_tokens": 1_000_000_000})),
        ("max_completion_tokens", json!({"max_completion_tokens": 0})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": [{"role": "user", "content": "x".repeat(300)}]})),
        ("tool_choice", json!({"tool_choice": "required"})),
    ] {
        let mut body = json!({"messages": hello()});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, body) = rig.post(CHAT, body).await;
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{body}");
    }
    let (status, body) = rig.post("/tokenize", json!({"messages": []})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("messages")), "{body}");
    rig.check_alive().await;
}

#[tokio::test]
async fn a_prompt_that_never_fits_is_no_empty_success() {
    let rig = Parts { num_blocks: 4, block_size: 4, ..Parts::default() }.start();
    let answers = join_all([false, true].map(|is_streamed| {
        rig.post(COMPLETIONS, json!({"prompt": ["x", "x".repeat(100)], "stream": is_streamed}))
    }));
    for (status, body) in answers.await {
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")), "{body}");
        assert_eq!(body.get("choices"), None::<&Value>);
    }
    assert_eq!(rig.service.engine.stats().num_requests, 0, "nothing of a wrong request is queued");
    rig.idle().await;
}
