//! A hub on the loopback interface, for tests: redirects, ETags, ranges, refusals, and transfers that break off.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use sha2::{Digest, Sha256};

pub(crate) const REPO: &str = "org/tiny";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Names and values.
type Headers = &'static [(&'static str, &'static str)];

#[derive(Default)]
pub(crate) struct Behaviour {
    /// Transfers of large files that break off in the middle, before one is whole.
    pub(crate) num_breaks: usize,
    /// Answers a request for a range with the whole file.
    pub(crate) ignores_ranges: bool,
    /// The token that is asked for.
    pub(crate) token: Option<&'static str>,
    /// What a transfer of a large file waits for: so many of them at the same time.
    pub(crate) num_together: usize,
    /// How everything is refused: the status, and the hub's word for it.
    pub(crate) refusal: Option<(&'static str, &'static str)>,
    /// Another content than the announced hash says, in the first transfer.
    pub(crate) num_corrupt: usize,
    /// So many requests are answered with this status, and with these headers.
    pub(crate) failing: Option<(usize, &'static str, Headers)>,
    /// How the ETag of every file begins, instead of one of its content; an empty one is not sent.
    pub(crate) etag: Option<&'static str>,
    /// The commit that is told, instead of [`COMMIT`].
    pub(crate) commit: Option<&'static str>,
    /// Files that are listed beside those that are there.
    pub(crate) listed: &'static [&'static str],
    /// How far an answer comes before the connection stays silent.
    pub(crate) silent: Option<Silent>,
    /// Where small files are said to be.
    pub(crate) location: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Silent {
    /// To nothing.
    Listing,
    /// To half a head.
    Head,
    /// To the first half of a large file.
    Body,
}

pub(crate) struct StubHub {
    pub(crate) url: String,
    state: Arc<State>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    behaviour: Behaviour,
    num_requests: AtomicUsize,
    num_transfers: AtomicUsize,
    meeting: Barrier,
    log: Mutex<Vec<String>>,
}

impl StubHub {
    /// A hub with the repository [`REPO`], at one commit.
    pub(crate) fn start(files: &[(&str, &[u8])], behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let meeting = Barrier::new(behaviour.num_together.max(1));
        let [num_requests, num_transfers] = [0; 2].map(AtomicUsize::new);
        let state = State { files, behaviour, num_requests, num_transfers, meeting, log: Mutex::default() };
        let state = Arc::new(state);
        let served = (Arc::clone(&state), url.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, url) = (Arc::clone(&served.0), served.1.clone());
                thread::spawn(move || state.serve(stream, &url));
            }
        });
        Self { url, state }
    }

    /// The requests so far, as `PATH RANGE`.
    pub(crate) fn log(&self) -> Vec<String> {
        self.state.log.lock().expect("no test panics while it logs").clone()
    }

    pub(crate) fn num_requests(&self) -> usize {
        self.log().len()
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl State {
    fn serve(&self, stream: TcpStream, url: &str) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
        let (mut range, mut token) = (String::new(), None);
        for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ")?;
            match name.to_ascii_lowercase().as_str() {
                "range" => range = value.to_owned(),
                "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
                _ => {}
            }
        }
        self.log.lock().ok()?.push(format!("{path} {range}"));
        self.answer(stream, url, &path, &range, token.as_deref())
    }

    fn answer(
        &self,
        mut to: TcpStream,
        url: &str,
        path: &str,
        range: &str,
        token: Option<&str>,
    ) -> Option<()> {
        if self.behaviour.token.is_some_and(|wanted| token != Some(wanted)) {
            return head(&mut to, "401 Unauthorized", &[], 0);
        }
        if let Some((num, status, headers)) = self.behaviour.failing
            && self.num_requests.fetch_add(1, Ordering::Relaxed) < num
        {
            return head(&mut to, status, headers, 0);
        }
        if let Some((status, code)) = self.behaviour.refusal {
            let headers = [("X-Error-Code", code), ("X-Error-Message", "words of the hub")];
            return head(&mut to, status, &headers, 0);
        }
        if path.starts_with(&format!("/api/models/{REPO}/revision/")) {
            if self.behaviour.silent == Some(Silent::Listing) {
                return silence(&to);
            }
            let names = self.files.keys().map(String::as_str).chain(self.behaviour.listed.iter().copied());
            let siblings: Vec<_> = names.map(|name| serde_json::json!({"rfilename": name})).collect();
            let commit = self.behaviour.commit.unwrap_or(COMMIT);
            let body = serde_json::json!({"siblings": siblings, "sha": commit}).to_string();
            head(&mut to, "200 OK", &[], body.len())?;
            return to.write_all(body.as_bytes()).ok();
        }
        let name = path.rsplit('/').next()?;
        let Some(bytes) = self.files.get(name).filter(|_| path.contains(REPO) || path.starts_with("/cdn/"))
        else {
            return head(&mut to, "404 Not Found", &[], 0);
        };
        let is_large = !name.ends_with(".json");
        if let Some(location) = self.behaviour.location.filter(|_| !is_large) {
            return head(&mut to, "302 Found", &[("Location", location)], 0);
        }
        if self.behaviour.silent == Some(Silent::Head) {
            to.write_all(b"HTTP/1.1 200 OK\r\nContent-").ok()?;
            return silence(&to);
        }
        if is_large && !path.starts_with("/cdn/") {
            let (location, hash) = (format!("{url}/cdn/{name}"), self.etag(name, bytes));
            let headers =
                [("Location", location.as_str()), ("X-Linked-Etag", &hash), ("X-Repo-Commit", COMMIT)];
            return head(&mut to, "302 Found", &headers, 0);
        }
        self.send(to, name, bytes, range)
    }

    /// The SHA-256 of a large file and 40 digits for a small one, as the hub has it; or what a test says.
    fn etag(&self, name: &str, bytes: &[u8]) -> String {
        match self.behaviour.etag {
            Some("") => String::new(),
            Some(etag) => format!("{etag}-{name}"),
            None if name.ends_with(".json") => sha256(bytes)[..40].to_owned(),
            None => sha256(bytes),
        }
    }

    fn send(&self, mut to: TcpStream, name: &str, bytes: &[u8], range: &str) -> Option<()> {
        let is_large = !name.ends_with(".json");
        let whole = self.behaviour.ignores_ranges || range.is_empty();
        let (start, end) = if whole { (0, bytes.len()) } else { span(range, bytes.len()) };
        let shown = format!("bytes {start}-{}/{}", end.saturating_sub(1), bytes.len());
        let etag = format!("\"{}\"", self.etag(name, bytes));
        let mut headers = vec![("X-Repo-Commit", COMMIT)];
        headers.extend((!whole).then_some(("Content-Range", shown.as_str())));
        headers.extend((etag != "\"\"").then_some(("ETag", etag.as_str())));
        head(&mut to, if whole { "200 OK" } else { "206 Partial Content" }, &headers, end - start)?;
        let mut body = bytes[start..end].to_vec();
        if is_large && range != "bytes=0-0" {
            self.meeting.wait();
            let transfer = self.num_transfers.fetch_add(1, Ordering::Relaxed);
            if transfer < self.behaviour.num_corrupt {
                body[0] ^= 1;
            }
            if transfer < self.behaviour.num_breaks {
                body.truncate(body.len() / 2);
            }
            if self.behaviour.silent == Some(Silent::Body) {
                to.write_all(&body[..body.len() / 2]).ok()?;
                return silence(&to);
            }
        }
        to.write_all(&body).ok()
    }
}

/// Nothing more, for longer than a test waits.
fn silence(_to: &TcpStream) -> Option<()> {
    thread::sleep(std::time::Duration::from_secs(20));
    None
}

fn head(to: &mut TcpStream, status: &str, headers: &[(&str, &str)], num_bytes: usize) -> Option<()> {
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {num_bytes}\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    to.write_all(format!("{text}\r\n").as_bytes()).ok()
}

/// `bytes=A-B` or `bytes=A-`, as a half-open range.
fn span(range: &str, len: usize) -> (usize, usize) {
    let parts = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let Some((start, last)) = parts else { return (0, len) };
    let end = last.parse::<usize>().map_or(len, |last| last + 1);
    (start.parse().unwrap_or(0), end.min(len))
}
