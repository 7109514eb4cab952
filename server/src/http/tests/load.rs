//! A small load over real connections: `benches/load` is the large one.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connections::Served;
use super::rig::{Parts, Rig};

const NUM_STREAMS: usize = 50;

/// Requests of a stream, one after the other.
const NUM_REQUESTS: usize = 8;

/// Pieces of an answer: one a character, and the end.
const NUM_PIECES: usize = 14;

#[tokio::test]
async fn many_streams_lose_nothing() {
    let rig = Parts { num_blocks: 1024, num_rows: NUM_STREAMS, ..Parts::default() }.start();
    rig.control.set_delay(Duration::from_millis(5));
    let served = Served::of(rig).await;
    let num_free = served.rig.service.engine.stats().num_free_blocks;
    let streams = (0..NUM_STREAMS).map(|place| stream(&served, place));
    let num_pieces: usize = join_all(streams).await.into_iter().sum();
    assert_eq!(num_pieces, NUM_STREAMS * NUM_REQUESTS * NUM_PIECES);
    served.rig.idle().await;
    served.rig.service.engine.reset_prefix_cache().expect("it serves");
    served.rig.check_alive().await;
    let stats = served.rig.service.engine.stats();
    assert_eq!(stats.num_free_blocks + stats.num_cached_blocks, num_free);
    assert_eq!(stats.num_requests, (NUM_STREAMS * NUM_REQUESTS + 1) as u64);
    let write_times = served.rig.service.write_times.histogram();
    assert_eq!(write_times.count(), num_pieces as u64);
    let (_, scrape) = served.rig.get("/metrics").await;
    let line = format!("quire:token_write_seconds_count{{model_name=\"tiny\"}} {num_pieces}");
    assert!(scrape.as_str().is_some_and(|scrape| scrape.contains(&line)), "{line}");
}

#[tokio::test]
async fn many_clients_may_connect_before_one_is_accepted() {
    let served = Served::of(Rig::new()).await;
    // The server begins to listen; while this thread connects, it accepts nobody.
    tokio::task::yield_now().await;
    let connect = |_| {
        std::net::TcpStream::connect_timeout(&served.address, Duration::from_millis(500)).expect("let in")
    };
    let clients: Vec<_> = (0..400).map(connect).collect();
    assert_eq!(clients.len(), 400);
    served.rig.check_alive().await;
}

#[tokio::test]
async fn older_clients_get_no_chunks() {
    let served = Served::of(Rig::new()).await;
    served.rig.control.set_delay(Duration::from_millis(2));
    let mut connection = served.connect().await;
    let body = r#"{"prompt": "a", "stream": true, "max_tokens": 100}"#;
    let head = "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(body.split_terminator("\n\n").all(|event| event.starts_with("data: ")), "{body}");
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
}

/// Requests over one connection: the pieces that came.
async fn stream(served: &Served, place: usize) -> usize {
    let mut connection = served.connect().await;
    let mut num_pieces = 0;
    for request in 0..NUM_REQUESTS {
        let body =
            json!({"prompt": format!("{place} {request}"), "stream": true, "max_tokens": 100}).to_string();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        connection.write_all(request.as_bytes()).await.expect("sent");
        let answer = read_answer(&mut connection).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        num_pieces += unchunked(body).matches("\"choices\"").count();
    }
    num_pieces
}

/// The body that chunks are made of; each holds whole events.
fn unchunked(mut chunks: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n").expect("a size");
        let (chunk, rest) = rest.split_at(usize::from_str_radix(size, 16).expect("hexadecimal digits"));
        chunks = rest.strip_prefix("\r\n").expect("the end of a chunk");
        if chunk.is_empty() {
            assert_eq!(chunks, "");
            return body;
        }
        assert!(chunk.starts_with("data: ") && chunk.ends_with("\n\n"), "{chunk}");
        body.push_str(chunk);
    }
}

/// To the end of a body in chunks.
async fn read_answer(connection: &mut TcpStream) -> String {
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n") {
        let num = connection.read(&mut bytes).await.expect("bytes");
        assert!(num > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..num]);
    }
    String::from_utf8(answer).expect("text")
}
