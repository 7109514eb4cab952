use std::sync::Arc;
use std::time::Duration;

use quire_engine::{EngineOptions, FinishReason};
use quire_models::testing::TinyTokenizer;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::rig::{Parts, Rig};
use crate::http::CertificateFiles;
use crate::http::listener::{self, Listening, Patience};
use crate::http::tls;

/// A rig behind a socket.
pub(super) struct Served {
    pub(super) rig: Rig,
    pub(super) address: std::net::SocketAddr,
    end: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Served {
    async fn new() -> Self {
        Self::of(Rig::new()).await
    }

    pub(super) async fn of(rig: Rig) -> Self {
        Self::with_tls(rig, None).await
    }

    async fn with_tls(rig: Rig, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let listening = Listening {
            router: rig.router(),
            tls,
            write_timeout: Duration::from_secs(1),
            write_times: rig.service.write_times.clone(),
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
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = self.connect().await;
        stream.write_all((head + &body).as_bytes()).await.expect("sent");
        stream
    }
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

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up() {
    let served = Served::new().await;
    // More than what sockets keep on the way.
    let prompts: Vec<_> = (0..64).map(|i| format!("{i}")).collect();
    let body = json!({"prompt": prompts, "n": 8, "logprobs": 5, "max_tokens": 150, "ignore_eos": true, "seed": 1, "stream": true});
    let client = served.send("/v1/completions", body).await;
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

#[tokio::test]
async fn connections_can_be_secured() {
    let folder = tempfile::tempdir().expect("a folder");
    let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let files =
        CertificateFiles { certificates: folder.path().join("c.pem"), key: folder.path().join("k.pem") };
    std::fs::write(&files.certificates, generated.cert.pem()).expect("written");
    std::fs::write(&files.key, generated.signing_key.serialize_pem()).expect("written");
    let (tls, _) = tls::acceptor(files).expect("both files are good");
    let served = Served::with_tls(Rig::new(), Some(tls)).await;
    // A handshake that is torn, and one that is none.
    drop(served.connect().await);
    served.connect().await.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(generated.cert.der().clone()).expect("a certificate");
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let mut client = connector.connect(name, served.connect().await).await.expect("a secure connection");
    client
        .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
