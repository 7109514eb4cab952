use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quire_engine::EngineOptions;
use serde_json::json;

use super::metrics::scrape;
use super::rig::{Rig, VOCAB_SIZE, post, read};
use crate::http::{ErrorForm, HttpSettings};

const PATH: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn br_35_each_parameter_has_one_meaning() {
    let rig = Rig::new();
    let good = [
        ("top_p", "1"),
        ("top_k", "-1"),
        ("top_k", "0"),
        ("seed", "-1"),
        ("stop", "\"a\""),
        ("n", "null"),
        ("logits_processors", "[{\"qualname\": \"picky\", \"args\": 1}]"),
    ];
    for (field, value) in good {
        let response = rig.send(post(PATH, format!("{{\"prompt\": \"a\", \"{field}\": {value}}}"))).await;
        assert_eq!(response.status(), StatusCode::OK, "{field} {value}");
    }
    let bad = [
        ("top_p", "0"),
        ("top_k", "-2"),
        ("min_p", "1.1"),
        ("temperature", "-0.1"),
        ("temperature", "2.1"),
        ("n", "0"),
        ("n", "1.5"),
        ("top_p", "\"a\""),
        ("presence_penalty", "3"),
        ("repetition_penalty", "0"),
        ("logprobs", "21"),
        ("stop", "[\"\"]"),
        ("best_of", "2"),
        ("min_tokens", "17"),
        ("stream", "1"),
        ("stream_options", "{}"),
        ("logit_bias", "{\"300\": 1}"),
        ("suffix", "1"),
        ("logits_processors", "[\"unknown\"]"),
        ("logits_processors", "[\"picky\"]"),
        ("logits_processors", "\"picky\""),
        ("priority", "\"a\""),
    ];
    for (field, value) in bad {
        let (status, body) =
            read(rig.send(post(PATH, format!("{{\"prompt\": \"a\", \"{field}\": {value}}}"))).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{field} {value}: {body}");
        assert_eq!(body["error"]["param"], field, "{body}");
        assert_eq!(body["error"]["type"], "BadRequestError");
        rig.check_alive().await;
    }
    let (status, _) = read(rig.send(post(PATH, r#"{"prompt": "a", "temperature": 1e999}"#)).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

/// What only the compiler of forms finds out, too.
#[tokio::test]
async fn a_broken_pattern_of_white_space_is_told_by_its_name() {
    let rig = Rig::new();
    for (form, pattern, param) in [
        ("guided_json", "guided_whitespace_pattern", "guided_whitespace_pattern"),
        ("response_format", "guided_whitespace_pattern", "guided_whitespace_pattern"),
        ("structured_outputs", "", "structured_outputs.whitespace_pattern"),
    ] {
        let mut body = json!({"prompt": "a"});
        match form {
            "structured_outputs" => body[form] = json!({"json_object": true, "whitespace_pattern": "["}),
            _ => (body[form], body[pattern]) = (json!({"type": "json_object"}), json!("[")),
        }
        if form == "guided_json" {
            body[form] = json!({"type": "object"});
        }
        let (status, body) = rig.post(PATH, body).await;
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{body}");
        let message = body["error"]["message"].as_str().expect("a text");
        assert!(message.starts_with(&format!("{param} cannot be used: ")), "{message}");
    }
    rig.check_alive().await;
}

/// Wherever a value is, and whatever is wrong with it.
#[tokio::test]
async fn no_value_is_sent_back_whole() {
    let rig = Rig::new();
    let long = "x".repeat(100_000);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (path, fields) in [
        (PATH, json!({"model": long})),
        (PATH, json!({"temperature": long})),
        (PATH, json!({"guided_regex": format!("({long}")})),
        (PATH, json!({"guided_choice": [long, ""]})),
        (PATH, json!({"bad_words": [long, ""]})),
        (PATH, json!({"stop": [long, ""]})),
        (PATH, json!({"response_format": {"type": long}})),
        (PATH, json!({"logits_processors": [long]})),
        (PATH, json!({"structured_outputs": {long.clone(): 1}})),
        (PATH, json!({"stream": true, "stream_options": long})),
        (PATH, json!({"logit_bias": {long.clone(): 1}})),
        (CHAT, json!({"tool_choice": long})),
        (CHAT, json!({"tool_choice": tool(&long)})),
        (CHAT, json!({"tools": [tool(&long), tool(&long)]})),
        (CHAT, json!({"tools": long})),
        (CHAT, json!({"chat_template": format!("{{{{ raise_exception('{long}') }}}}")})),
        (CHAT, json!({"messages": [{"role": "user", "content": [{"type": long}]}]})),
        ("/tokenize", json!({"tool_choice": long})),
    ] {
        let mut body = if path == PATH { json!({"prompt": "a"}) } else { chat.clone() };
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let (status, answer) = rig.post(path, body).await;
        assert!(status.is_client_error() || status.as_u16() == 501, "{status}");
        let length = answer.to_string().len();
        assert!((50..1000).contains(&length), "{length} bytes: {:.200}", answer.to_string());
    }
    let mut strict = post(PATH, json!({"prompt": "a", long: 1}).to_string());
    strict.headers_mut().insert("x-quire-strict", "1".parse().expect("a value"));
    let (status, answer) = read(rig.send(strict).await).await;
    assert!(status == StatusCode::BAD_REQUEST && answer.to_string().len() < 1000, "{answer:.200}");
    rig.check_alive().await;
}

/// The body of a chat may be sent there as it is.
#[tokio::test]
async fn tokenize_refuses_what_a_chat_would_be_refused_for() {
    let rig = Rig::new();
    let named = json!({"type": "function", "function": {"name": "f"}});
    for (field, value) in [
        ("tool_choice", json!("any")),
        ("tool_choice", json!("required")),
        ("tool_choice", named),
        ("seed", json!("x")),
        ("seed", json!(1.5)),
        ("top_p", json!(0)),
        ("top_logprobs", json!(1)),
        ("stop", json!([""])),
        ("guided_regex", json!("(")),
        ("logit_bias", json!({"300": 1})),
        ("max_completion_tokens", json!(0)),
    ] {
        for path in [CHAT, "/tokenize"] {
            let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
            body[field] = value.clone();
            let (status, answer) = rig.post(path, body).await;
            let told = (status, &answer["error"]["param"]);
            assert_eq!(told, (StatusCode::BAD_REQUEST, &json!(field)), "{path} {value}: {answer}");
        }
    }
    let (status, answer) = rig.post("/tokenize", json!({"prompt": "a", "top_p": 0})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("top_p")), "{answer}");
    let good = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "seed": 1});
    assert_eq!(rig.post("/tokenize", good).await.0, StatusCode::OK);
}

/// As OpenAI's servers do, whatever the number.
#[tokio::test]
async fn a_bias_beyond_all_bounds_is_the_largest() {
    let rig = Rig::new();
    for bias in [1e300, -1e300, f64::MAX] {
        let body = json!({"prompt": "a", "max_tokens": 2, "logit_bias": {"72": bias}});
        assert_eq!(rig.post(PATH, body).await.0, StatusCode::OK, "{bias}");
    }
}

#[tokio::test]
async fn br_36_a_token_beyond_the_vocabulary_is_refused() {
    let rig = Rig::new();
    for id in [json!(VOCAB_SIZE), json!(-1), json!(u64::MAX)] {
        let (status, body) = rig.post(PATH, json!({"prompt": [5, id], "repetition_penalty": 1.1})).await;
        assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")), "{body}");
        rig.check_alive().await;
    }
}

#[tokio::test]
async fn a_body_of_another_kind_is_refused() {
    let rig = Rig::new();
    let plain = Request::post(PATH)
        .header(header::CONTENT_TYPE, "text/plain")
        .body(Body::from("{}"))
        .expect("a request");
    assert_eq!(read(rig.send(plain).await).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let none = Request::post(PATH).body(Body::from("{}")).expect("a request");
    assert_eq!(read(rig.send(none).await).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for bytes in [&b"{"[..], b"\xff", b"[1]", b"", "[".repeat(100_000).as_bytes()] {
        let (status, body) = read(rig.send(post(PATH, bytes.to_vec())).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(body["error"]["message"].is_string(), "{body}");
    }
    rig.check_alive().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.max_body_bytes = 1000;
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    let (status, body) = rig.post(PATH, json!({"prompt": "x".repeat(1000)})).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{body}");
    assert!(
        body["error"]["message"].as_str().is_some_and(|message| message.contains("max-body-bytes")),
        "{body}"
    );
    // One that says so is not waited for.
    let never = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let mut request = post(PATH, never);
    request.headers_mut().insert(header::CONTENT_LENGTH, (1u64 << 30).into());
    let answer = tokio::time::timeout(Duration::from_secs(10), rig.send(request)).await;
    assert_eq!(answer.expect("at once").status(), StatusCode::PAYLOAD_TOO_LARGE);
    rig.check_alive().await;
}

#[tokio::test]
async fn an_unknown_model_and_an_unknown_route_are_not_found() {
    let rig = Rig::new();
    let (status, body) = rig.post(PATH, json!({"model": "other", "prompt": "a"})).await;
    assert_eq!((status, &body["error"]["type"]), (StatusCode::NOT_FOUND, &json!("NotFoundError")), "{body}");
    assert!(
        body["error"]["message"].as_str().is_some_and(|message| message.contains("tiny or alias")),
        "{body}"
    );
    assert_eq!(rig.get("/v2/nothing").await.0, StatusCode::NOT_FOUND);
    let get = rig.send(Request::get(PATH).body(Body::empty()).expect("a request")).await;
    assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(get.headers()["allow"], "POST");
    let (status, body) = rig.post("/v1/embeddings", json!({"input": "a"})).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (StatusCode::NOT_IMPLEMENTED, &json!("NotImplementedError"))
    );
}

#[tokio::test]
async fn the_old_form_of_errors_is_flat() {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.error_form = ErrorForm::Flat;
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    for body in [rig.post(PATH, json!({"prompt": "a", "n": 0})).await.1, rig.get("/nothing").await.1] {
        assert_eq!((&body["object"], &body["code"].is_number()), (&json!("error"), &true), "{body}");
    }
}

#[tokio::test]
async fn a_field_without_effect_is_refused_for_the_strict() {
    let rig = Rig::new();
    let body = json!({"prompt": "a", "made_up": 1}).to_string();
    assert_eq!(rig.send(post(PATH, body.clone())).await.status(), StatusCode::OK);
    let mut strict = post(PATH, body);
    strict.headers_mut().insert("x-quire-strict", "1".parse().expect("a value"));
    let (status, body) = read(rig.send(strict).await).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("made_up")), "{body}");
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "audio": {}});
    let (status, body) = rig.post(CHAT, chat).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::NOT_IMPLEMENTED, &json!("audio")));
}

#[tokio::test]
async fn what_nobody_knows_within_a_field_is_refused_for_the_strict() {
    let rig = Rig::new();
    let schema = json!({"name": "a", "schema": {}, "strict": true, "description": "b", "odd": 1});
    for (mut body, field) in [
        (json!({"stream": true, "stream_options": {"include_usage": true, "odd": 1}}), "stream_options.odd"),
        (json!({"response_format": {"type": "text", "odd": 1, "none": null}}), "response_format.odd"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
            "response_format.json_schema.odd",
        ),
    ] {
        body["prompt"] = json!("a");
        assert_eq!(rig.send(post(PATH, body.to_string())).await.status(), StatusCode::OK, "{field}");
        let mut strict = post(PATH, body.to_string());
        strict.headers_mut().insert("x-quire-strict", "1".parse().expect("a value"));
        let (status, answer) = read(rig.send(strict).await).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{answer}");
    }
}

#[tokio::test]
async fn only_those_with_a_key_are_served() {
    let mut settings = HttpSettings::new(vec!["tiny".to_owned()]);
    settings.api_keys = vec!["one".to_owned(), "two".to_owned()];
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    let with = |key: Option<&str>| {
        let mut request = post(PATH, json!({"prompt": "a"}).to_string());
        if let Some(key) = key {
            request.headers_mut().insert(header::AUTHORIZATION, key.parse().expect("a value"));
        }
        request
    };
    for key in ["Bearer one", "bearer two"] {
        assert_eq!(rig.send(with(Some(key))).await.status(), StatusCode::OK, "{key}");
    }
    for key in [None, Some("one"), Some("Bearer three"), Some("Basic one")] {
        let response = rig.send(with(key)).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{key:?}");
        assert!(response.headers().contains_key(header::WWW_AUTHENTICATE));
    }
    for (path, expected) in [
        ("/health", StatusCode::OK),
        ("/v1/models", StatusCode::UNAUTHORIZED),
        ("/v1/effective", StatusCode::UNAUTHORIZED),
    ] {
        assert_eq!(rig.get(path).await.0, expected, "{path}");
    }
}

#[tokio::test]
async fn what_the_router_answers_by_itself_is_an_error_like_others() {
    let rig = Rig::new();
    for (method, path, status, part) in [
        ("GET", "/v1/models/%ff", StatusCode::BAD_REQUEST, "UTF-8"),
        ("GET", "/v1/requests/%ff/why", StatusCode::BAD_REQUEST, "UTF-8"),
        ("POST", "/v1/effective", StatusCode::METHOD_NOT_ALLOWED, "needs a restart"),
        ("PATCH", "/v1/effective", StatusCode::METHOD_NOT_ALLOWED, "needs a restart"),
        ("GET", "/load", StatusCode::NOT_IMPLEMENTED, "/load is not built yet"),
        ("POST", "/pause", StatusCode::NOT_IMPLEMENTED, "/pause is not built yet"),
        ("GET", "/nothing", StatusCode::NOT_FOUND, "no such route"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
        let (told, body) = read(rig.send(request).await).await;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(told == status && message.contains(part), "{path}: {told} {body}");
    }
}

#[tokio::test]
async fn br_10_what_is_too_much_is_refused_at_once() {
    let rig = Rig::with(
        HttpSettings::new(vec!["tiny".to_owned()]),
        EngineOptions::new("tiny").max_num_seqs(1).max_num_waiting(4),
    );
    rig.control.hold();
    let mut open: FuturesUnordered<_> =
        (0..50).map(|_| rig.send(post(PATH, json!({"prompt": "ab"}).to_string()))).collect();
    let mut num_refused = 0;
    // Nothing is answered but what is refused while the engine stands still.
    while let Ok(Some(response)) = tokio::time::timeout(Duration::from_millis(300), open.next()).await {
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let retry_after = response.headers()[header::RETRY_AFTER].to_str().expect("text");
        assert!(retry_after.parse::<u64>().is_ok_and(|seconds| seconds > 0), "{retry_after}");
        num_refused += 1;
    }
    assert_eq!(num_refused, 45);
    rig.control.go_on();
    while let Some(response) = open.next().await {
        assert_eq!(response.status(), StatusCode::OK);
    }
    drop(open);
    let samples = scrape(&rig).await;
    let answers = |status: u16| samples[&format!("quire:http_responses_total{{status=\"{status}\"}}")];
    assert_eq!((answers(429), answers(200)), (f64::from(num_refused), f64::from(50 - num_refused)));
    rig.check_alive().await;
}
