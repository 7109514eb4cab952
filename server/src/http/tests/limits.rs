use std::time::Duration;

use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quire_engine::EngineOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connections::Served;
use super::rig::{Rig, post, read};
use crate::http::{HttpSettings, KeyLimits};

const PATH: &str = "/v1/completions";

fn rig(change: impl FnOnce(&mut HttpSettings)) -> Rig {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    change(&mut settings);
    Rig::with(settings, EngineOptions::new("tiny"))
}

#[tokio::test]
async fn br_10_as_many_may_come_at_once_as_run_and_wait() {
    for (n, num_running) in [(1, 8), (2, 4)] {
        let options = EngineOptions::new("tiny").max_num_seqs(8).max_num_waiting(8);
        let rig = Rig::with(HttpSettings::new(vec!["tiny".to_owned()]), options);
        rig.control.hold();
        let body = json!({"prompt": "ab", "n": n, "seed": 1}).to_string();
        // A request runs from its first sequence on: those that are planned before the others come have a seat each, whatever n is.
        let mut open: FuturesUnordered<_> = (0..8 + 9).map(|_| rig.send(post(PATH, body.clone()))).collect();
        while let Ok(refused) = tokio::time::timeout(Duration::from_millis(300), open.next()).await {
            assert_eq!(refused.expect("one is open").status(), StatusCode::TOO_MANY_REQUESTS);
        }
        assert!((num_running + 8..=8 + 8).contains(&open.len()), "n {n}: {} are open", open.len());
        rig.control.go_on();
        while let Some(response) = open.next().await {
            assert_eq!(response.status(), StatusCode::OK);
        }
        drop(open);
        rig.check_alive().await;
    }
}

#[tokio::test]
async fn a_deadline_holds_while_a_prompt_is_read() {
    let rig = Rig::new();
    let text = "ab cd ".repeat(170_000);
    for (path, body) in
        [(PATH, json!({"prompt": text, "truncate_prompt_tokens": 8})), ("/tokenize", json!({"prompt": text}))]
    {
        let mut request = post(path, body.to_string());
        request.headers_mut().insert("x-request-timeout", "0.05".parse().expect("a value"));
        let (status, body) = read(rig.send(request).await).await;
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{path} {body}");
    }
    rig.check_alive().await;
}

#[tokio::test]
async fn a_deadline_holds_while_a_body_is_read() {
    let rig = Rig::new();
    let mut request = post("/detokenize", json!({"tokens": vec![1; 1 << 20]}).to_string());
    request.headers_mut().insert("x-request-timeout", "0.001".parse().expect("a value"));
    let (status, body) = read(rig.send(request).await).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{body}");
    rig.check_alive().await;
}

#[tokio::test]
async fn texts_of_which_all_tokens_are_counted_have_a_bound() {
    let rig = Rig::new();
    let text = "ab cd ".repeat(180_000);
    for (path, body) in
        [(PATH, json!({"prompt": text, "truncate_prompt_tokens": 8})), ("/tokenize", json!({"prompt": text}))]
    {
        let (status, body) = rig.post(path, body).await;
        let message = body["error"]["message"].as_str().expect("an error");
        assert_eq!(status, StatusCode::BAD_REQUEST, "{message}");
        assert_eq!(
            message,
            "the text has 1080000 bytes: expected at most 1048576, of which all tokens are counted"
        );
    }
}

#[tokio::test]
async fn more_prompts_than_there_can_be_places_for_are_no_question_of_time() {
    let options = EngineOptions::new("tiny").max_num_seqs(8).max_num_waiting(3);
    let rig = Rig::with(HttpSettings::new(vec!["tiny".to_owned()]), options);
    for (n, num_running) in [(1, 8), (2, 4), (100, 1)] {
        let prompts = |num| json!({"prompt": vec!["ab"; num], "n": n, "seed": 1, "max_tokens": 1});
        let (status, body) = rig.post(PATH, prompts(num_running + 3)).await;
        assert_eq!(status, StatusCode::OK, "n {n}: {body}");
        let (status, body) = rig.post(PATH, prompts(num_running + 4)).await;
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")), "n {n}");
        let (num, most) = (num_running + 4, num_running + 3);
        let expected = format!(
            "{num} prompts: expected at most {most}, of which {num_running} run (--max-num-seqs) and 3 wait (--max-num-waiting)"
        );
        assert_eq!(body["error"]["message"], expected);
    }
    rig.check_alive().await;
}

#[tokio::test]
async fn a_text_of_megabytes_is_refused_by_its_beginning() {
    let rig = Rig::new();
    let text = "ab cd ".repeat(1_000_000);
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    for (path, body) in [(PATH, json!({ "prompt": text })), ("/v1/chat/completions", chat)] {
        let (status, body) = rig.post(path, body).await;
        let message = body["error"]["message"].as_str().expect("an error");
        assert_eq!(status, StatusCode::BAD_REQUEST, "{message}");
        assert!(message.contains("more than twice the tokens that fit"), "{message}");
    }
    rig.check_alive().await;
}

#[tokio::test]
async fn a_request_ends_at_its_deadline() {
    let rig = Rig::new();
    rig.control.set_delay(Duration::from_millis(10));
    for is_streamed in [false, true] {
        let body = json!({"prompt": "ab", "ignore_eos": true, "max_tokens": 150, "stream": is_streamed});
        let mut request = post(PATH, body.to_string());
        request.headers_mut().insert("x-request-timeout", "0.1".parse().expect("a value"));
        let (status, body) = read(rig.send(request).await).await;
        let text = body.to_string();
        assert!(text.contains("0.1 s of its X-Request-Timeout"), "{text}");
        match is_streamed {
            false => assert_eq!(status, StatusCode::REQUEST_TIMEOUT),
            true => assert!(status.is_success() && text.contains("[DONE]"), "{status} {text}"),
        }
        rig.idle().await;
    }
    let mut odd = post(PATH, json!({"prompt": "a"}).to_string());
    odd.headers_mut().insert("x-request-timeout", "soon".parse().expect("a value"));
    assert_eq!(rig.send(odd).await.status(), StatusCode::BAD_REQUEST);
    rig.control.set_delay(Duration::ZERO);
    rig.check_alive().await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_ends_at_its_deadline() {
    let rig = Rig::new();
    rig.control.set_delay(Duration::from_millis(100));
    let body = json!({"prompt": "ab", "ignore_eos": true, "max_tokens": 150, "stream": true});
    let mut request = post(PATH, body.to_string());
    request.headers_mut().insert("x-request-timeout", "0.3".parse().expect("a value"));
    let unread = rig.send(request).await;
    tokio::time::timeout(Duration::from_secs(10), rig.idle()).await.expect("15 s of tokens are given up");
    let (_, body) = read(unread).await;
    assert!(body.to_string().contains("0.3 s of its X-Request-Timeout"), "{body}");
}

#[tokio::test]
async fn a_key_that_has_used_its_tokens_waits() {
    let limits = KeyLimits { max_requests: None, tokens_per_minute: Some(60) };
    let rig =
        rig(|settings| (settings.api_keys, settings.key_limits) = (vec!["a".into(), "b".into()], limits));
    let ask = async |key: &str, is_streamed: bool| {
        let body = json!({"prompt": "abcde", "max_tokens": 100, "ignore_eos": true, "stream": is_streamed});
        let mut request = post(PATH, body.to_string());
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, format!("Bearer {key}").parse().expect("a value"));
        let response = rig.send(request).await;
        let retry_after = response.headers().get(header::RETRY_AFTER).cloned();
        (read(response).await.0, retry_after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok()))
    };
    for (key, is_streamed) in [("a", false), ("b", true)] {
        assert_eq!(ask(key, is_streamed).await, (StatusCode::OK, None));
        // 105 of 60 tokens were used; one comes each second.
        let (status, retry_after) = ask(key, is_streamed).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(retry_after.is_some_and(|seconds| (40..=46).contains(&seconds)), "{retry_after:?}");
    }
}

#[tokio::test]
async fn keys_may_have_caches_of_their_own() {
    let rig = rig(|settings| {
        (settings.api_keys, settings.keys_are_tenants) = (vec!["a".into(), "b".into()], true);
        settings.enable_prompt_tokens_details = true;
    });
    let cached = async |key: &str| {
        let mut request = post(PATH, json!({"prompt": "the same twenty bytes"}).to_string());
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, format!("Bearer {key}").parse().expect("a value"));
        read(rig.send(request).await).await.1["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(cached("a").await, Some(0));
    assert!(cached("a").await.is_some_and(|cached| cached > 0));
    assert_eq!(cached("b").await, Some(0));
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let served = Served::of(rig(|settings| settings.body_timeout = Duration::from_millis(200))).await;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    let mut client = served.connect().await;
    client.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("answered and closed");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    served.rig.check_alive().await;
}
