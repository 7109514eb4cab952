use std::time::Duration;

use quire_engine::{EngineOptions, FinishReason};
use quire_models::testing::TinyTokenizer;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::rig::{Parts, Rig};
use crate::http::HttpSettings;
use crate::http::listener::{self, HEAD_TIMEOUT, Listening, Patience};

/// A rig behind a socket.
pub(super) struct Served {
    pub(super) rig: Rig,
    pub(super) address: std::net::SocketAddr,
    pub(super) end: oneshot::Sender<()>,
    pub(super) server: JoinHandle<()>,
}

impl Served {
    async fn new() -> Self {
        Self::of(Rig::new()).await
    }

    pub(super) async fn of(rig: Rig) -> Self {
        Self::with_tls(rig, None).await
    }

    pub(super) async fn with_tls(rig: Rig, tls: Option<TlsAcceptor>) -> Self {
        Self::patient(rig, tls, Duration::from_secs(1)).await
    }

    async fn patient(rig: Rig, tls: Option<TlsAcceptor>, write_timeout: Duration) -> Self {
        Self::with_timeouts(rig, tls, [write_timeout, HEAD_TIMEOUT]).await
    }

    pub(super) async fn with_timeouts(
        rig: Rig,
        tls: Option<TlsAcceptor>,
        [write_timeout, head_timeout]: [Duration; 2],
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let listening = Listening {
            router: rig.router(),
            tls,
            write_timeout,
            head_timeout,
            write_times: rig.service.write_times.clone(),
            error_form: rig.service.settings.error_form,
        };
        let server = tokio::spawn(listener::serve(listener, listening, async move {
            drop(ended.await);
            Patience(tokio::time::sleep(Duration::from_secs(2)))
        }));
        Self { rig, address, end, server }
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    pub(super) async fn send(&self, path: &str, body: serde_json::Value) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(request(path, &body).as_bytes()).await.expect("sent");
        stream
    }
}

/// A request as it goes over a connection.
pub(super) fn request(path: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn br_41_a_client_that_leaves_takes_its_work_along() {
    let served = Served::new().await;
    let endless = |stream| json!({"prompt": "ab", "max_tokens": 150, "ignore_eos": true, "stream": stream});
    served.rig.control.set_delay(Duration::from_millis(5));
    for is_streamed in [true, false] {
        let mut client = served.send("/v1/completions", endless(is_streamed)).await;
        if is_streamed {
            let mut some = [0; 400];
            client.read_exact(&mut some).await.expect("the beginning");
        } else {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let steps_before = served.rig.service.engine.stats().num_steps;
        drop(client);
        served.rig.idle().await;
        let num_steps = served.rig.service.engine.stats().num_steps - steps_before;
        assert!(num_steps < 60, "{num_steps} steps after the client had left");
    }
    assert_eq!(served.rig.service.engine.stats().num_finished[&FinishReason::Abort], 2);
    served.rig.control.set_delay(Duration::ZERO);
    served.rig.check_alive().await;
}

/// A stream that would go on for long.
pub(super) const ENDLESS: &str = r#"{"prompt": "ab", "max_tokens": 150, "ignore_eos": true, "stream": true}"#;

/// Sends a request and, in the same breath and later, bytes behind it; then leaves. The work must end with the client.
pub(super) async fn leave_with_bytes_behind<S: AsyncRead + AsyncWrite + Unpin>(
    rig: &Rig,
    mut client: S,
    is_streamed: bool,
) {
    let mut body: serde_json::Value = serde_json::from_str(ENDLESS).expect("JSON");
    body["stream"] = is_streamed.into();
    let next = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    client.write_all((request("/v1/completions", &body) + next).as_bytes()).await.expect("sent");
    client.flush().await.expect("sent");
    rig.until(|stats| stats.num_running == 1).await;
    for _ in 0..2 {
        client.write_all(next.as_bytes()).await.expect("sent");
        client.flush().await.expect("sent");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let steps_before = rig.service.engine.stats().num_steps;
    drop(client);
    rig.idle().await;
    let num_steps = rig.service.engine.stats().num_steps - steps_before;
    assert!(num_steps < 20, "{num_steps} steps after the client had left");
}

#[tokio::test]
async fn br_41_a_client_that_leaves_bytes_behind_its_request_takes_its_work_along() {
    let served = Served::new().await;
    served.rig.control.set_delay(Duration::from_millis(10));
    for is_streamed in [true, false] {
        leave_with_bytes_behind(&served.rig, served.connect().await, is_streamed).await;
    }
    assert_eq!(served.rig.service.engine.stats().num_finished[&FinishReason::Abort], 2);
    served.rig.control.set_delay(Duration::ZERO);
    served.rig.check_alive().await;
}

#[tokio::test]
async fn br_41_a_client_that_leaves_during_a_long_prompt_stops_it() {
    let served = Served::of(
        Parts { options: EngineOptions::new("tiny").max_num_batched_tokens(16), ..Parts::parrot() }.start(),
    )
    .await;
    served.rig.control.set_delay(Duration::from_millis(50));
    let client = served.send("/v1/completions", json!({"prompt": "x".repeat(190), "max_tokens": 9})).await;
    served.rig.until(|stats| stats.num_running == 1).await;
    drop(client);
    served.rig.idle().await;
    let stats = served.rig.service.engine.stats();
    assert_eq!((stats.num_finished.get(&FinishReason::Abort), stats.num_first_tokens), (Some(&1), 0));
    assert!(stats.num_step_tokens < 190, "{} tokens were computed", stats.num_step_tokens);
}

#[tokio::test]
async fn br_41_a_client_that_leaves_the_queue_never_runs() {
    let served =
        Served::of(Parts { options: EngineOptions::new("tiny").max_num_seqs(1), ..Parts::parrot() }.start())
            .await;
    served.rig.control.set_delay(Duration::from_millis(20));
    let running = served.send("/v1/completions", json!({"prompt": "ab", "max_tokens": 190})).await;
    served.rig.until(|stats| stats.num_running == 1).await;
    let queued = served.send("/v1/completions", json!({"prompt": "cdefghij", "max_tokens": 100})).await;
    served.rig.until(|stats| stats.num_waiting == 1).await;
    drop(queued);
    served.rig.until(|stats| stats.num_waiting == 0).await;
    let stats = served.rig.service.engine.stats();
    assert_eq!((stats.num_running, stats.num_finished.get(&FinishReason::Abort)), (1, Some(&1)));
    drop(running);
    served.rig.idle().await;
    let prompts = served.rig.control.batches().into_iter().flat_map(|batch| batch.added);
    assert!(prompts.into_iter().all(|row| row.token_ids[0] == TinyTokenizer::byte(b'a')));
}

#[tokio::test]
async fn a_client_that_closes_its_half_has_left() {
    let served = Served::new().await;
    served.rig.control.set_delay(Duration::from_millis(5));
    for is_streamed in [true, false] {
        let body = json!({"prompt": "ab", "max_tokens": 150, "ignore_eos": true, "stream": is_streamed});
        let mut client = served.send("/v1/completions", body).await;
        served.rig.until(|stats| stats.num_running == 1).await;
        client.shutdown().await.expect("its half");
        served.rig.idle().await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the end");
        assert!(!answer.contains("[DONE]") && !answer.contains("usage\":{"), "{answer}");
    }
    assert_eq!(served.rig.service.engine.stats().num_finished[&FinishReason::Abort], 2);
    served.rig.control.set_delay(Duration::ZERO);
    served.rig.check_alive().await;
}

#[tokio::test]
async fn a_server_that_ends_finishes_what_it_answers() {
    let served = Served::new().await;
    served.rig.control.set_delay(Duration::from_millis(5));
    let mut client = served.send("/v1/completions", json!({"prompt": "ab", "stream": true})).await;
    let mut text = vec![0; 200];
    client.read_exact(&mut text).await.expect("the beginning");
    served.end.send(()).expect("it runs");
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("the rest");
    assert!(rest.contains("[DONE]"), "{rest}");
    served.server.await.expect("it has ended");
    assert!(TcpStream::connect(served.address).await.is_err());
}

/// A stream that is more than what sockets keep on the way.
fn large_stream() -> serde_json::Value {
    let prompts: Vec<_> = (0..64).map(|i| format!("{i}")).collect();
    json!({"prompt": prompts, "n": 8, "logprobs": 5, "max_tokens": 150, "ignore_eos": true, "seed": 1, "stream": true})
}

#[tokio::test]
async fn what_waits_for_a_client_that_does_not_read_has_an_end() {
    let settings = HttpSettings { max_unsent_bytes: 1 << 17, ..HttpSettings::new(vec!["tiny".to_owned()]) };
    let rig = Rig::with(settings, EngineOptions::new("tiny"));
    let served = Served::patient(rig, None, Duration::from_secs(600)).await;
    let mut client = served.send("/v1/completions", large_stream()).await;
    served.rig.until(|stats| stats.num_running > 0).await;
    served.rig.until(|stats| stats.num_running + stats.num_waiting + stats.num_live_blocks == 0).await;
    let mut answer = Vec::new();
    // The connection stays for a next request.
    while !answer.ends_with(b"0\r\n\r\n") {
        assert!(client.read_buf(&mut answer).await.expect("the rest") > 0, "it is cut off");
    }
    let answer = String::from_utf8(answer).expect("text");
    let end = answer.rsplit_once("data: {").expect("events").1;
    assert!(end.contains("more than 131072 bytes") && end.ends_with("[DONE]\n\n\r\n0\r\n\r\n"), "{end}");
    served.rig.check_alive().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up() {
    let served = Served::new().await;
    let client = served.send("/v1/completions", large_stream()).await;
    let started = std::time::Instant::now();
    while served.rig.service.lifecycle.num_open() == 0 && started.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while served.rig.service.lifecycle.num_open() > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "it is kept for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    served.rig.idle().await;
    drop(client);
    served.rig.check_alive().await;
}
