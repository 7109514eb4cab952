//! Connections that have asked for nothing, or not to the end, when a server ends.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connections::{Served, request};
use super::rig::Rig;
use super::secured::Secured;

/// Far less than the server's patience.
const SOON: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn what_has_not_been_asked_to_its_end_holds_nothing_up() {
    let body = request("/v1/completions", &json!({"prompt": "ab"}));
    for (sent, is_answered) in [
        ("", false),
        ("GET /health HTTP/1.1\r\nHo", false),
        (&body[..body.len() - 3], true),
        (&body[..], true),
    ] {
        let served = Served::of(Rig::new()).await;
        served.rig.control.hold();
        let mut client = served.connect().await;
        let (head, rest) = sent.split_at(if sent == body { body.len() - 3 } else { sent.len() });
        client.write_all(head.as_bytes()).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let started = Instant::now();
        served.rig.service.lifecycle.drain();
        served.end.send(()).expect("it runs");
        // A body that comes a moment later is read, and refused.
        client.write_all(rest.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("it is closed in order");
        served.rig.control.go_on();
        drop(client);
        served.server.await.expect("it ends");
        assert!(started.elapsed() < SOON, "{sent:?}: {:?}", started.elapsed());
        let is_refused = answer.starts_with("HTTP/1.1 503") && answer.contains("\r\nconnection: close\r\n");
        assert!(is_refused == is_answered && answer.is_empty() != is_answered, "{sent:?}: {answer}");
    }
}

#[tokio::test]
async fn a_handshake_that_has_begun_holds_nothing_up() {
    let secured = Secured::new().await;
    let mut silent = secured.served.connect().await;
    let mut begun = secured.served.connect().await;
    // The beginning of a ClientHello.
    begun.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.expect("sent");
    let mut half = secured.connect().await;
    half.write_all(b"GET /health HTTP/1.1\r\nHo").await.expect("sent");
    half.flush().await.expect("sent");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    secured.served.end.send(()).expect("it runs");
    let mut nothing = Vec::new();
    for client in [&mut silent, &mut begun] {
        drop(client.read_to_end(&mut nothing).await);
    }
    drop(half.read_to_end(&mut nothing).await);
    assert_eq!(nothing, b"");
    secured.served.server.await.expect("it ends");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_client_that_is_still_sending_reads_that_it_is_refused() {
    let served = Served::of(Rig::new()).await;
    let mut client = served.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n{";
    client.write_all(head.as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(50)).await;
    served.rig.service.lifecycle.drain();
    served.end.send(()).expect("it runs");
    for _ in 0..6 {
        client.write_all(&[b' '; 100]).await.expect("it is passed over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("it is not cut off");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    drop(client);
    served.server.await.expect("it ends");
}
