//! How a server ends, and what it says on connections that end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_engine::{EngineOptions, FinishReason};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use super::connections::{ENDLESS, Served};
use super::rig::{Parts, Rig, post};
use crate::http::server;

/// All that comes.
async fn read(mut client: TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("to the end");
    answer
}

#[tokio::test]
async fn at_the_end_of_their_time_requests_are_told() {
    let options = EngineOptions::new("tiny").max_num_seqs(2);
    let served = Served::of(Parts { options, ..Parts::parrot() }.start()).await;
    served.rig.control.set_delay(Duration::from_millis(20));
    let mut body: Value = serde_json::from_str(ENDLESS).expect("JSON");
    let mut clients = Vec::new();
    for is_streamed in [true, false, true, false] {
        body["stream"] = is_streamed.into();
        clients.push((is_streamed, served.send("/v1/completions", body.clone()).await));
    }
    served.rig.until(|stats| (stats.num_running, stats.num_waiting) == (2, 2)).await;
    let lifecycle = &served.rig.service.lifecycle;
    lifecycle.drain();
    let late = read(served.send("/v1/completions", json!({"prompt": "x"})).await).await;
    assert!(late.starts_with("HTTP/1.1 503") && late.contains("\r\nconnection: close\r\n"), "{late}");
    lifecycle.give_up();
    served.end.send(()).expect("it runs");
    for (is_streamed, client) in clients {
        let answer = read(client).await;
        let (status, end) = if is_streamed { ("200", "data: [DONE]\n\n\r\n0\r\n\r\n") } else { ("503", "}") };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with(end), "{answer}");
        let told = r#"{"error":{"message":"the server is shutting down, and has given the request up before its end""#;
        assert!(answer.contains(told) && answer.contains("\"code\":503"), "{answer}");
    }
    served.rig.idle().await;
    assert_eq!(served.rig.service.engine.stats().num_finished[&FinishReason::Abort], 4);
}

#[tokio::test]
async fn large_bodies_that_wait_for_their_turn_hold_nothing_up_at_the_end() {
    let served = Served::of(Rig::new()).await;
    let (work, num_bytes) = (&served.rig.service.body_work, 1 << 20);
    let mut places = Vec::new();
    while let Ok(place) = tokio::time::timeout(Duration::from_millis(10), work.place(num_bytes)).await {
        places.push(place);
    }
    let mut clients = Vec::new();
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        clients.push(served.send(path, json!({"prompt": "x".repeat(num_bytes)})).await);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    served.rig.service.lifecycle.drain();
    for client in clients {
        let answer = read(client).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"code\":503"), "{answer}");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "nobody gave its place back");
    drop(places);
}

#[test]
fn an_end_does_not_wait_for_the_device() {
    let runtime = Runtime::new().expect("threads");
    let rig = Rig::new();
    rig.control.hold_from(2);
    let (router, engine) = (rig.router(), Arc::clone(&rig.service.engine));
    let mut request = post("/v1/completions", json!({"prompt": "ab"}).to_string());
    request.headers_mut().insert("host", "x".parse().expect("a value"));
    runtime.spawn(router.oneshot(request));
    runtime.block_on(rig.until(|stats| stats.num_running == 1));
    let control = rig.control.clone();
    let started = Instant::now();
    drop(rig);
    server::leave(runtime, engine, false);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    control.go_on();
}

#[tokio::test]
async fn what_is_no_http_is_told_so_as_all_else_is() {
    let served = Served::of(Rig::new()).await;
    let many = (0..200).map(|place| format!("X-{place}: y\r\n")).collect::<String>();
    let long = "y".repeat(1 << 20);
    for (status, text) in [
        ("400", "\x16\x03\x01 and so on\r\n\r\n".to_owned()),
        ("400", "GET /health HTTP/1.1\r\nHo st: x\r\n\r\n".to_owned()),
        ("400", "GET /health HTTP/7.3\r\n\r\n".to_owned()),
        (
            "400",
            "POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n{}   {}"
                .to_owned(),
        ),
        ("414", format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(70_000))),
        ("431", format!("GET /health HTTP/1.1\r\n{many}\r\n")),
        ("431", format!("GET /health HTTP/1.1\r\nX: {long}\r\n\r\n")),
        // Behind a request that is answered.
        ("400", "GET /health HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n".to_owned()),
    ] {
        let mut client = served.connect().await;
        // What it does not want to read it may leave.
        let _ = client.write_all(text.as_bytes()).await;
        let answer = read(client).await;
        let own = answer.find(&format!("HTTP/1.1 {status}")).map(|start| &answer[start..]);
        let (head, body) =
            own.and_then(|own| own.split_once("\r\n\r\n")).unwrap_or_else(|| panic!("{answer}"));
        assert!(head.contains(&format!("\r\ncontent-length: {}", body.len())), "{answer}");
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        assert_eq!(body["error"]["code"].to_string(), status);
    }
    served.rig.check_alive().await;
}

#[tokio::test]
async fn older_clients_keep_their_connection_where_they_ask_for_it() {
    let served = Served::of(Rig::new()).await;
    let get = |connection: &str| format!("GET /health HTTP/1.0\r\n{connection}\r\n");
    let mut kept = served.connect().await;
    let mut answer = vec![0; 4096];
    for _ in 0..2 {
        kept.write_all(get("Connection: keep-alive\r\n").as_bytes()).await.expect("sent");
        let num = kept.read(&mut answer).await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..num]);
        assert!(
            answer.starts_with("HTTP/1.0 200") && answer.contains("\r\nconnection: keep-alive\r\n"),
            "{answer}"
        );
    }
    let mut client = served.connect().await;
    let body = r#"{"prompt": "x", "stream": true}"#;
    let head =
        "POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n";
    let length = body.len();
    client.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).await.expect("sent");
    let stream = read(client).await;
    assert!(stream.contains("\r\nconnection: close\r\n") && stream.ends_with("[DONE]\n\n"), "{stream}");
    let mut plain = served.connect().await;
    plain.write_all(get("").as_bytes()).await.expect("sent");
    let answer = read(plain).await;
    assert!(answer.starts_with("HTTP/1.0 200") && !answer.contains("keep-alive"), "{answer}");
    served.rig.service.lifecycle.drain();
    kept.write_all(get("Connection: keep-alive\r\n").as_bytes()).await.expect("sent");
    let last = read(kept).await;
    assert!(last.contains("\r\nconnection: close\r\n"), "{last}");
    assert!(!last.contains("keep-alive"), "{last}");
}
