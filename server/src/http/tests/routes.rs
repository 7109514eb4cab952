use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;

use super::rig::Rig;

#[tokio::test]
async fn clients_read_the_length_in_force() {
    let rig = Rig::new();
    let (status, body) = rig.get("/v1/models").await;
    assert_eq!(status, StatusCode::OK);
    let names: Vec<_> = body["data"].as_array().expect("a list").iter().map(|card| &card["id"]).collect();
    assert_eq!(names, ["tiny", "alias"]);
    assert_eq!(
        (&body["data"][0]["max_model_len"], &body["data"][0]["owned_by"]),
        (&json!(200), &json!("vllm"))
    );
    assert_eq!(rig.get("/v1/models/alias").await.0, StatusCode::OK);
    assert_eq!(rig.get("/v1/models/other").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn tokens_go_there_and_back() {
    let rig = Rig::new();
    let (_, body) = rig.post("/tokenize", json!({"model": "tiny", "prompt": "ab é"})).await;
    assert_eq!((&body["count"], &body["max_model_len"]), (&json!(5), &json!(200)), "{body}");
    let (_, back) = rig.post("/detokenize", json!({"tokens": body["tokens"]})).await;
    assert_eq!(back, json!({"prompt": "ab é"}));
    let (_, chat) = rig.post("/tokenize", json!({"messages": [{"role": "user", "content": "a"}]})).await;
    assert!(chat["count"].as_u64().is_some_and(|count| count > 10), "{chat}");
    let (status, body) = rig.post("/detokenize", json!({"tokens": [300]})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    let (status, body) = rig.post("/tokenize", json!({})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")));
}

#[tokio::test]
async fn the_server_says_how_it_is() {
    let rig = Rig::new();
    for path in ["/health", "/health/ready", "/ping", "/version"] {
        assert_eq!(rig.get(path).await.0, StatusCode::OK, "{path}");
    }
    let (_, body) = rig.get("/v1/effective").await;
    assert_eq!(body["settings"]["max_model_len"], json!({"value": "200", "source": "model"}), "{body}");
    for (name, value) in [
        ("served_model_name", json!(["tiny", "alias"])),
        ("max_body_bytes", json!(16 << 20)),
        ("write_timeout", json!(60)),
        ("shutdown_timeout", json!(30)),
        ("disable_fastapi_docs", json!(false)),
        ("tokens_per_minute_per_key", json!(null)),
    ] {
        assert_eq!(body["server"][name], value, "{name}");
    }
    rig.service.lifecycle.drain();
    assert_eq!(rig.get("/health").await.0, StatusCode::OK);
    assert_eq!(rig.get("/health/ready").await.0, StatusCode::SERVICE_UNAVAILABLE);
    let (status, body) = rig.post("/v1/completions", json!({"prompt": "a"})).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("ServiceUnavailableError"))
    );
}

#[tokio::test]
async fn a_request_is_told_why_it_waits() {
    let rig = Rig::new();
    assert_eq!(rig.get("/v1/requests/cmpl-x/why").await.0, StatusCode::NOT_FOUND);
    rig.control.hold();
    let body = json!({"prompt": "a", "request_id": "x"});
    let answer = rig.post("/v1/completions", body);
    let ask = async {
        // The engine answers between two steps: it is let go to do so.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        // By the name of its answer, and by the one that the client chose.
        let both =
            futures_util::future::join(rig.get("/v1/requests/cmpl-x/why"), rig.get("/v1/requests/x/why"));
        let (both, ()) = tokio::join!(both, async {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            rig.control.go_on();
        });
        for (status, body) in [both.0, both.1] {
            assert_eq!(
                (status, &body["outputs"][0]["status"]),
                (StatusCode::OK, &json!("running")),
                "{body}"
            );
        }
    };
    let ((status, _), ()) = tokio::join!(answer, ask);
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_client_is_told_what_its_request_is_called() {
    let rig = Rig::new();
    let ask = async |names: &[&str]| {
        let mut request = super::rig::post("/v1/completions", json!({"prompt": "a"}).to_string());
        for name in names {
            request.headers_mut().append("x-request-id", name.parse().expect("a value"));
        }
        let response = rig.send(request).await;
        let told = response.headers().get("x-request-id").map(|name| name.to_str().expect("text").to_owned());
        let id = super::rig::read(response).await.1["id"].as_str().expect("a name").to_owned();
        (told, id)
    };
    assert_eq!(ask(&["mine"]).await, (Some("mine".to_owned()), "cmpl-mine".to_owned()));
    assert_eq!(ask(&[]).await.0, None);
    for odd in [&["a b"][..], &[""], &["a", "b"], &[&"x".repeat(129)]] {
        let (told, id) = ask(odd).await;
        let told = told.expect("another name");
        assert!(told.len() == 32 && id == format!("cmpl-{told}"), "{odd:?}: {told} {id}");
    }
    let (status, body) = rig.post("/v1/completions", json!({"prompt": "a", "request_id": "a b"})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("request_id")), "{body}");
}

#[tokio::test]
async fn decisions_on_a_request_that_is_not_there_are_not_logged() {
    let rig = Rig::new();
    let (status, body) = rig.post("/debug/schedule-log", json!({"request_id": "cmpl-x"})).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::NOT_FOUND, &json!("request_id")), "{body}");
    let (status, _) = rig.post("/debug/schedule-log", json!({})).await;
    // The log of this process is that of the tests, and may not be asked for more.
    assert_ne!(status, StatusCode::NOT_FOUND, "all of them are");
}

#[tokio::test]
async fn browsers_are_told_what_they_may() {
    let rig = Rig::new();
    let preflight = Request::options("/v1/chat/completions")
        .header("origin", "https://example.org")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type")
        .body(Body::empty())
        .expect("a request");
    let response = rig.send(preflight).await;
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
    assert_eq!(response.headers()["access-control-allow-headers"], "authorization,content-type");
    let wrong = Request::get("/nothing")
        .header("origin", "https://example.org")
        .body(Body::empty())
        .expect("a request");
    assert_eq!(rig.send(wrong).await.headers()["access-control-allow-origin"], "*", "errors can be read too");
}

#[tokio::test]
async fn the_page_shows_the_engine() {
    let rig = Rig::new();
    let page = rig.send(Request::get("/").body(Body::empty()).expect("a request")).await;
    assert!(page.headers()["content-type"].to_str().is_ok_and(|kind| kind.starts_with("text/html")));
    let (_, html) = super::rig::read(page).await;
    let html = html.as_str().expect("text");
    assert!(!html.contains("://"), "nothing comes from elsewhere");
    rig.post("/v1/completions", json!({"prompt": "a"})).await;
    let events = rig.send(Request::get("/live/events").body(Body::empty()).expect("a request")).await;
    let first = events.into_body().frame().await.expect("an event").expect("sent").into_data().expect("data");
    let text = std::str::from_utf8(&first).expect("text").strip_prefix("data: ").expect("an event");
    let look: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(look["stats"]["num_requests"], 1, "{look}");
    assert_eq!(look["stats"]["distributions"]["ttft_s"]["count"], 1);
    assert!(look["requests"].is_array());
}

#[tokio::test]
async fn a_chat_can_be_seen_as_the_model_sees_it() {
    let rig = Rig::new();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let path = "/v1/chat/completions/render";
    let (status, body) = rig
        .post(
            path,
            json!({"model": "tiny", "messages": messages, "max_tokens": 3, "request_id": "x", "stream": true}),
        )
        .await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(body["prompt"], "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    let (_, tokens) = rig.post("/tokenize", json!({"messages": messages})).await;
    assert_eq!((&body["token_ids"], &body["count"]), (&tokens["tokens"], &tokens["count"]));
    assert_eq!(
        (&body["request_id"], &body["sampling_params"]["max_tokens"]),
        (&json!("chatcmpl-x"), &json!(3))
    );
    // What a chat is refused for, this is.
    for (wrong, field) in [
        (json!({"messages": messages, "temperature": -1}), "temperature"),
        (json!({"messages": messages, "max_tokens": 1000}), "max_tokens"),
        (json!({"messages": []}), "messages"),
    ] {
        let (status, body) = rig.post(path, wrong.clone()).await;
        let (chat_status, chat_body) = rig.post("/v1/chat/completions", wrong).await;
        assert_eq!((status, &body), (chat_status, &chat_body));
        assert!(status.is_client_error() && body["error"]["param"] == field, "{body}");
    }
    assert_eq!(rig.service.engine.stats().num_requests, 0);
}
