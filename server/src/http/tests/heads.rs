//! What a server says of heads that are wrong, or do not come.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use quire_engine::EngineOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connections::Served;
use super::metrics::scrape;
use super::rig::{Rig, post, read};
use crate::http::{ErrorForm, HttpSettings};

/// All that the server says to those bytes until it closes the connection, and its body.
async fn talk(served: &Served, sent: &[u8]) -> (String, Value) {
    let mut client = served.connect().await;
    client.write_all(sent).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("answered and closed");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let body = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {answer}"));
    (answer, body)
}

#[tokio::test]
async fn every_request_names_its_host_once() {
    let served = Served::of(Rig::new()).await;
    for (head, part) in [
        ("GET /health HTTP/1.1", "Host is missing"),
        ("GET /health HTTP/1.1\r\nHost: a\r\nHost: a", "several times"),
        ("GET /health HTTP/1.0\r\nHost: a\r\nHost: b", "several times"),
        ("GET /health HTTP/1.1\r\nHost: a b/c", "Host is \"a b/c\": expected HOST or HOST:PORT"),
        ("GET /nothing HTTP/1.1", "Host is missing"),
        (
            "OPTIONS /health HTTP/1.1\r\nOrigin: http://x\r\nAccess-Control-Request-Method: GET",
            "Host is missing",
        ),
    ] {
        let (answer, body) = talk(&served, format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.0 400"), "{head}: {answer}");
        assert_eq!(body["error"]["param"], "Host", "{body}");
        assert!(body["error"]["message"].as_str().expect("a text").contains(part), "{head}: {body}");
    }
    for head in ["HTTP/1.0", "HTTP/1.0\r\nHost: a", "HTTP/1.1\r\nHost:", "HTTP/1.1\r\nHost: [::1]:8000"] {
        let mut client = served.connect().await;
        let request = format!("GET /health {head}\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("answered");
        assert!(answer[8..].starts_with(" 200"), "{head}: {answer}");
    }
    assert_eq!(scrape(&served.rig).await["quire:http_responses_total{status=\"400\"}"], 6.0);
}

#[tokio::test]
async fn a_client_of_http_2_is_told_what_is_spoken_here() {
    for form in [ErrorForm::Nested, ErrorForm::Flat] {
        let settings = HttpSettings { error_form: form, ..HttpSettings::new(vec!["tiny".to_owned()]) };
        let served = Served::of(Rig::with(settings, EngineOptions::new("tiny"))).await;
        let (answer, body) = talk(&served, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert!(
            answer.starts_with("HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\n"),
            "{answer}"
        );
        let error = if form == ErrorForm::Flat { &body } else { &body["error"] };
        assert_eq!(error["code"], 505, "{body}");
        assert!(error["message"].as_str().expect("a text").contains("expected HTTP/1.1"), "{body}");
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_is_told_so() {
    let timeouts = [Duration::from_secs(1), Duration::from_millis(200)];
    let served = Served::with_timeouts(Rig::new(), None, timeouts).await;
    for sent in ["GET /health HT", "GET /health HTTP/1.1\r\nHost: x\r\n", "\r\nG"] {
        let (answer, body) = talk(&served, sent.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n"), "{answer}");
        assert!(body["error"]["message"].as_str().expect("a text").ends_with("within 0.2 s"), "{body}");
    }
    // Those that ask for nothing are told nothing.
    for sent in ["", "\r\n", "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let mut client = served.connect().await;
        client.write_all(sent.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("closed");
        assert!(!answer.contains("408"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_encoded_is_refused_with_what_would_be_taken() {
    let rig = Rig::new();
    let send = async |codings: &[&str]| {
        let mut request = post("/v1/completions", json!({"prompt": "a", "max_tokens": 1}).to_string());
        for coding in codings {
            let value = HeaderValue::from_str(coding).expect("a value");
            request.headers_mut().append(header::CONTENT_ENCODING, value);
        }
        rig.send(request).await
    };
    for codings in [&["gzip"][..], &["BR"], &["identity, deflate"], &["identity", "zstd"], &["x-made-up"]] {
        let response = send(codings).await;
        assert_eq!(response.headers()[header::ACCEPT_ENCODING], "identity");
        let (status, body) = read(response).await;
        let told = (status, &body["error"]["param"]);
        assert_eq!(told, (StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!("Content-Encoding")), "{body}");
        let coding = codings.last().expect("one").rsplit(' ').next().expect("one");
        let message = format!("content-encoding is {coding}: expected none, or identity");
        assert_eq!(body["error"]["message"], message);
    }
    for codings in [&[][..], &[""], &["identity"], &["Identity , identity", ""]] {
        assert_eq!(send(codings).await.status(), StatusCode::OK, "{codings:?}");
    }
    let other = Request::post("/v1/completions").body(Body::from("{}")).expect("a request");
    let other = rig.send(other).await;
    assert_eq!(other.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(!other.headers().contains_key(header::ACCEPT_ENCODING), "the coding is not what is wrong");
}
