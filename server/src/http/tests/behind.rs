//! What clients send behind a request that is not answered yet.

use std::time::Duration;

use quire_engine::FinishReason;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::connections::{Served, request};
use super::rig::Rig;

/// A request, to be the second over its connection, of at least that many bytes.
fn last_request(num_bytes: usize) -> String {
    let body = json!({"prompt": "b", "max_tokens": 2}).to_string() + &" ".repeat(num_bytes);
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json";
    format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn endless() -> String {
    request("/v1/completions", &json!({"prompt": "ab", "max_tokens": 150, "ignore_eos": true}))
}

/// Sends a request, and that behind it, and leaves. The work must end with the client.
pub(super) async fn leave_behind<S: AsyncRead + AsyncWrite + Unpin>(rig: &Rig, mut client: S, behind: &str) {
    let num_aborted =
        || rig.service.engine.stats().num_finished.get(&FinishReason::Abort).copied().unwrap_or(0);
    let before = num_aborted();
    client.write_all(endless().as_bytes()).await.expect("sent");
    client.flush().await.expect("sent");
    rig.until(|stats| stats.num_running == 1).await;
    client.write_all(behind.as_bytes()).await.expect("the server reads on");
    client.flush().await.expect("sent");
    let steps_before = rig.service.engine.stats().num_steps;
    assert_eq!(num_aborted(), before, "bytes alone end nothing");
    drop(client);
    rig.idle().await;
    let num_steps = rig.service.engine.stats().num_steps - steps_before;
    assert!(num_steps < 40, "{num_steps} steps after the client had left");
    assert_eq!(num_aborted(), before + 1);
}

#[tokio::test]
async fn br_41_a_client_that_leaves_much_behind_its_request_takes_its_work_along() {
    let served = Served::of(Rig::new()).await;
    served.rig.control.set_delay(Duration::from_millis(20));
    for num_bytes in [300_000, 1_000_000, 3_000_000] {
        leave_behind(&served.rig, served.connect().await, &"x".repeat(num_bytes)).await;
    }
    leave_behind(&served.rig, served.connect().await, &last_request(600_000)).await;
    served.rig.control.set_delay(Duration::ZERO);
    served.rig.check_alive().await;
}

#[tokio::test]
async fn requests_that_come_at_once_are_answered_in_turn() {
    let served = Served::of(Rig::new()).await;
    served.rig.control.set_delay(Duration::from_millis(10));
    let mut client = served.connect().await;
    let first = request("/v1/completions", &json!({"prompt": "ab"}));
    client.write_all((first + &last_request(600_000)).as_bytes()).await.expect("sent");
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.expect("both");
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answers}");
    served.rig.control.set_delay(Duration::ZERO);
    served.rig.check_alive().await;
}

#[tokio::test]
async fn a_long_body_is_no_flood_and_a_flood_waits_in_its_socket() {
    let served = Served::of(Rig::new()).await;
    for num_bytes in [5_000_000, 15_000_000] {
        for _ in 0..4 {
            let mut client = served.connect().await;
            client.write_all(last_request(num_bytes).as_bytes()).await.expect("it is read");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{num_bytes}: {answer}");
        }
    }
    served.rig.control.set_delay(Duration::from_millis(20));
    let mut client = served.connect().await;
    client.write_all(endless().as_bytes()).await.expect("sent");
    served.rig.until(|stats| stats.num_running == 1).await;
    let flood = async {
        let piece = vec![b'x'; 1 << 20];
        while client.write_all(&piece).await.is_ok() {}
    };
    tokio::time::timeout(Duration::from_millis(500), flood).await.expect_err("nobody reads so much");
    drop(client);
    served.rig.control.set_delay(Duration::ZERO);
    served.rig.idle().await;
    served.rig.check_alive().await;
}
