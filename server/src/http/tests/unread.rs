//! Requests that are answered before their bodies were read.

use quire_engine::EngineOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connections::Served;
use super::rig::Rig;
use crate::http::HttpSettings;

/// The head of the next answer; its body is passed over.
async fn answer(client: &mut TcpStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(client.read_u8().await.expect("an answer")));
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    client.read_exact(&mut body).await.expect("the body");
    head
}

fn says_close(head: &str) -> bool {
    head.contains("\r\nconnection: close\r\n")
}

async fn ends(client: &mut TcpStream) -> bool {
    matches!(client.read(&mut [0]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn what_nobody_reads_of_a_body_is_passed_over() {
    let served = Served::of(Rig::new()).await;
    let mut client = served.connect().await;
    for (line, status) in [
        ("POST /nothing", "404"),
        ("DELETE /v1/completions", "405"),
        ("POST /v1/completions", "415"),
        ("POST /v1/embeddings", "501"),
        ("GET /health", "200"),
    ] {
        for num_bytes in [10_usize, 200_000, 900_000] {
            let head = format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {num_bytes}\r\n\r\n");
            client.write_all(head.as_bytes()).await.expect("sent");
            client.write_all(&vec![b'x'; num_bytes]).await.expect("it is read");
            let head = answer(&mut client).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{line} {num_bytes}: {head}");
            assert!(!says_close(&head), "{line} {num_bytes}: {head}");
        }
    }
}

#[tokio::test]
async fn an_answer_says_that_its_connection_ends() {
    let settings = HttpSettings { max_body_bytes: 1000, ..HttpSettings::new(vec!["tiny".to_owned()]) };
    let served = Served::of(Rig::with(settings, EngineOptions::new("tiny"))).await;
    for (head, num_sent, status) in [
        ("POST /nothing HTTP/1.1\r\nContent-Length: 2000000", 200_000, "404"),
        ("POST /nothing HTTP/1.1\r\nContent-Length: 200000", 1000, "404"),
        ("DELETE /v1/completions HTTP/1.1\r\nContent-Length: 2000000", 0, "405"),
        ("POST /v1/completions HTTP/1.1\r\nContent-Length: 2000000", 1000, "415"),
        (
            "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2000000",
            200_000,
            "413",
        ),
        // The client waits to be told to go on, and is not.
        ("POST /nothing HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 20", 0, "404"),
    ] {
        let mut client = served.connect().await;
        client.write_all(format!("{head}\r\nHost: x\r\n\r\n").as_bytes()).await.expect("sent");
        client.write_all(&vec![b'x'; num_sent]).await.expect("sent");
        let said = answer(&mut client).await;
        assert!(said.starts_with(&format!("HTTP/1.1 {status}")) && says_close(&said), "{head}: {said}");
        assert!(ends(&mut client).await, "{head}: it stays");
    }
    // What is refused is not more than what is passed over.
    let mut client = served.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 300000\r\n\r\n";
    for _ in 0..2 {
        client.write_all(head.as_bytes()).await.expect("sent");
        client.write_all(&vec![b'x'; 300_000]).await.expect("it is read");
        let said = answer(&mut client).await;
        assert!(said.starts_with("HTTP/1.1 413") && !says_close(&said), "{said}");
    }
}
