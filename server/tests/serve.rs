//! `quire serve` as a process.

#[path = "common/program.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command};
use std::time::{Duration, Instant};

use program::{Tiny, command, run};

struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    _model: Tiny,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        let model = Tiny::new();
        let path = model.path();
        let port = if flags.contains(&"--port") { &[][..] } else { &["--port", "0"] };
        let words = [&["serve", &path, "--num-gpu-blocks-override", "64"], port, flags].concat();
        let mut child = command(&words).spawn().expect("the program was built for this test");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(stderr.read_line(&mut line).expect("text") > 0, "it ended before it served");
            if let Some((_, address)) = line.split_once("http://") {
                break address.trim().to_owned();
            }
        };
        Self { child, stderr, address, _model: model }
    }

    /// The whole answer, head included.
    fn send(&self, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    }

    fn signal(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there").success());
    }

    /// The exit code, and what was logged.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of this test") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut log = String::new();
        self.stderr.read_to_string(&mut log).expect("text");
        (status.code(), log)
    }
}

#[test]
fn a_server_answers_and_ends_in_order() {
    let server = Server::start(&["--api-key", "secret"]);
    assert!(server.send("GET /health", "").starts_with("HTTP/1.1 200"));
    let refused = server.send("POST /v1/completions", r#"{"prompt": "a"}"#);
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let answer = server.send(
        "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer secret\r\nX-Rest:",
        r#"{"prompt": "a", "max_tokens": 3}"#,
    );
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":"), "{answer}");
    server.signal();
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("shutting down") && !log.contains("panicked"), "{log}");
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_the_model_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    run(&["serve", "/nonexistent", "--port", &port], "").refused(&["cannot listen on 127.0.0.1:", "in use"]);
    run(&["serve", "/nonexistent", "--port", "0", "--api-key-file", "/nonexistent/keys"], "")
        .refused(&["/nonexistent/keys"]);
    run(&["serve", "/nonexistent", "--port", "70000"], "").refused(&["--port"]);
}

#[test]
fn flags_may_come_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.yaml");
    std::fs::write(&file, "host: 127.0.0.1\nmax-queued-requests: 7\nport: 1\n").expect("written");
    let server = Server::start(&["--config", &file.display().to_string(), "--port", "0"]);
    let effective = server.send("GET /v1/effective", "");
    assert!(
        effective.contains(r#""max_num_waiting":{"source":"flag","value":"7"}"#)
            || effective.contains(r#""max_num_waiting":{"value":"7","source":"flag"}"#),
        "{effective}"
    );
    server.signal();
    assert_eq!(server.end().0, Some(0));
    std::fs::write(&file, "prot: 1").expect("written");
    run(&["serve", "--config", &file.display().to_string()], "")
        .refused(&["serve.yaml", "did you mean port?"]);
    run(&["serve", "--enable-lora"], "").refused(&["--enable-lora is not built"]);
    run(&["serve", "--ssl-certfile", "/nonexistent"], "").refused(&["--ssl-keyfile"]);
    run(&["serve", "--port", "0", "--ssl-certfile", "/nonexistent", "--ssl-keyfile", "/nonexistent"], "")
        .refused(&["/nonexistent: "]);
}

#[test]
fn a_load_on_the_server_is_measured() {
    let server = Server::start(&[]);
    let url = format!("http://{}", server.address);
    let pid = server.child.id().to_string();
    let flags = [
        "--num-prompts",
        "12",
        "--input-len",
        "9",
        "--output-len",
        "6",
        "--request-rate",
        "200",
        "--vocab-size",
        "200",
    ];
    let words = [&["bench", "serve", &url, "--server-pid", &pid][..], &flags].concat();
    let report = run(&words, "").ok().lines().remove(0);
    assert_eq!((&report["num_requests"], &report["num_failed"]), (&12.into(), &0.into()), "{report}");
    assert_eq!(report["output_tokens"], 72, "{report}");
    assert!(report["ttft_ms"]["p50"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(report["server_cpu_us_per_token"].is_number(), "{report}");
    server.signal();
    assert_eq!(server.end().0, Some(0));
    run(&words, "").failed(1, &["the server does not answer"]);
}
