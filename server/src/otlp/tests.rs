use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use quire_engine::{
    AsyncLlm, EngineConfig, EngineOptions, EngineParts, ModelFacts, Request, RequestId, SamplingParams,
};
use quire_executor::testing::ScriptedExecutor;

use super::Exporter;

/// The head and the body of one request, answered with 200.
fn answer(mut stream: TcpStream) -> (String, Vec<u8>) {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let num = stream.read(&mut part).expect("a request");
        bytes.extend_from_slice(&part[..num]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        if bytes.len() >= end + 4 + length.parse::<usize>().expect("a number") {
            let answer =
                "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).expect("answered");
            return (head, bytes.split_off(end + 4));
        }
    }
}

#[test]
fn a_collector_gets_a_span_for_each_stage() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}/v1/traces", collector.local_addr().expect("an address"));
    let collected = thread::spawn(move || answer(collector.accept().expect("an exporter").0));
    let exporter = Exporter::start(&endpoint, "tiny").expect("an address");
    let executor = ScriptedExecutor::new(ScriptedExecutor::small_capacity(64, 4), |_, _| 5);
    let config = EngineConfig::resolve(EngineOptions::new("tiny"), ModelFacts { max_model_len: 64 });
    let parts = EngineParts::new(config.expect("right"), Box::new(executor));
    let client = exporter.trace(Arc::new(AsyncLlm::start(parts).expect("it starts")));
    let request =
        Request { id: RequestId::new("the-request"), ..Request::new(vec![7, 8], SamplingParams::greedy(3)) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let output = runtime.block_on(client.generate(request)).expect("generated");
    assert_eq!(output.outputs[0].token_ids, [5, 5, 5]);
    drop(exporter);
    let (head, body) = collected.join().expect("collected");
    assert!(head.starts_with("post /v1/traces") && head.contains("application/x-protobuf"), "{head}");
    let text = String::from_utf8_lossy(&body);
    for part in ["tiny", "llm_request", "prepare", "queue", "prefill", "decode", "the-request"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn other_protocols_are_refused() {
    for endpoint in ["grpc://localhost:4317", "localhost:4318", ""] {
        assert!(Exporter::start(endpoint, "tiny").is_err(), "{endpoint}");
    }
}
