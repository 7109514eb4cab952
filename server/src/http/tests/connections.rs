use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::rig::Rig;
use crate::http::listener;

/// A rig behind a socket.
pub(super) struct Served {
    pub(super) rig: Rig,
    address: std::net::SocketAddr,
    end: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Served {
    async fn new() -> Self {
        Self::of(Rig::new()).await
    }

    pub(super) async fn of(rig: Rig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let server = tokio::spawn(listener::serve(listener, rig.router(), async move { drop(ended.await) }));
        Self { rig, address, end, server }
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    async fn send(&self, path: &str, body: serde_json::Value) -> TcpStream {
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
    assert_eq!(served.rig.service.engine.stats().num_finished[&quire_engine::FinishReason::Abort], 2);
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
