//! `quire serve`, as a process.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Tiny, command};

/// A server of a tiny model, at a free port of this host.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// What is logged, as far as it was read, and where the rest comes from.
    unread: Option<(String, BufReader<ChildStderr>)>,
    log: Option<JoinHandle<String>>,
    _model: Tiny,
}

impl Server {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let port = if flags.contains(&"--port") { &[][..] } else { &["--port", "0"] };
        Self::start_with(&[&["--num-gpu-blocks-override", "64"], port, flags].concat())
    }

    /// With no flags but these.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        let mut server = Self::start_unread(flags);
        server.read_log();
        server
    }

    /// Nobody reads its log once it serves.
    pub(crate) fn start_unread(flags: &[&str]) -> Self {
        let model = Tiny::new();
        let path = model.path();
        let words = [&["serve", &path], flags].concat();
        let mut child = command(&words).spawn().expect("the program was built for this test");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut log = String::new();
        let address = loop {
            let start = log.len();
            assert!(stderr.read_line(&mut log).expect("text") > 0, "it ended before it served: {log}");
            if let Some((_, address)) = log[start..].split_once("http://") {
                break address.trim().to_owned();
            }
        };
        Self { child, address, unread: Some((log, stderr)), log: None, _model: model }
    }

    /// From now on somebody does.
    pub(crate) fn read_log(&mut self) {
        let Some((mut log, mut stderr)) = self.unread.take() else { return };
        self.log = Some(thread::spawn(move || {
            stderr.read_to_string(&mut log).expect("text");
            log
        }));
    }

    /// Its log goes to a file, and nothing is known of it.
    pub(crate) fn logging_to(log: File) -> Self {
        let model = Tiny::new();
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let (path, port) = (model.path(), free.port().to_string());
        let words = ["serve", &path, "--num-gpu-blocks-override", "64", "--port", &port];
        let child = command(&words).stderr(log).spawn().expect("the program was built for this test");
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(free).is_err() {
            assert!(Instant::now() < deadline, "it does not serve");
            thread::sleep(Duration::from_millis(20));
        }
        Self { child, address: free.to_string(), unread: None, log: None, _model: model }
    }

    /// The whole answer, head included.
    pub(crate) fn send(&self, head: &str, body: &str) -> String {
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

    /// The JSON of an answer.
    pub(crate) fn ask(&self, head: &str, body: &str) -> Value {
        let answer = self.send(head, body);
        let (_, json) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(json).unwrap_or_else(|_| panic!("no JSON: {answer}"))
    }

    /// Returns when nothing runs, waits or holds a block.
    pub(crate) fn becomes_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let stats = self.ask("GET /v1/effective", "")["stats"].clone();
            if ["num_running", "num_waiting", "num_live_blocks"].iter().all(|name| stats[name] == 0) {
                return;
            }
            assert!(Instant::now() < deadline, "{stats}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGTERM, or another one.
    pub(crate) fn signal(&self, name: &str) {
        let (name, pid) = (format!("-{name}"), self.child.id().to_string());
        assert!(Command::new("kill").args([&name, &pid]).status().expect("kill is there").success());
    }

    /// The exit code, and what was logged.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of this test") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(10));
        };
        let log = self.log.take().map(|log| log.join().expect("it reads to the end"));
        (status.code(), log.unwrap_or_default())
    }

    /// Ends it in order; what was logged.
    pub(crate) fn end_well(self) -> String {
        self.signal("TERM");
        let (code, log) = self.end();
        assert!(code == Some(0) && !log.contains("panicked"), "{log}");
        log
    }
}
