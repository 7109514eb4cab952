//! Requests to a hub: with limits of time, redirects followed with care for the token, refusals told apart.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body};

use super::{AnswerFault, Denial, SourceError};

const MAX_REDIRECTS: usize = 6;
/// An answer that lists a repository is smaller.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// What a transfer slower than this brings is not worth waiting for.
const MIN_BYTES_PER_SECOND: u64 = 1024;

/// How long a hub may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a connection.
    pub(super) connect: Duration,
    /// For the head of an answer, and for each piece of its body.
    pub(super) silence: Duration,
    /// Before another attempt at what failed on the hub's side; doubled each time.
    pub(super) pause: Duration,
    /// What a hub may ask to wait for.
    pub(super) max_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [connect, silence, pause, max_pause] = [10, 20, 1, 60].map(Duration::from_secs);
        Self { connect, silence, pause, max_pause }
    }
}

/// A client of one hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    limits: Limits,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    /// For people: repository, revision and file.
    pub(super) what: &'a str,
    /// `ORG/NAME`.
    pub(super) repo: &'a str,
    pub(super) url: &'a str,
    /// A `Range` header.
    pub(super) range: Option<&'a str>,
    /// Whether it is enough to know the file: where it is stored elsewhere, nobody goes there.
    pub(super) head_only: bool,
}

/// An answer that is no refusal.
pub(super) struct Answer {
    /// The head that knows the file: of the first response that has its hash, which is often a redirect.
    pub(super) head: HeaderMap,
    /// The last response.
    pub(super) response: Response<Body>,
}

impl Client {
    pub(super) fn new(endpoint: &str, token: Option<&str>, limits: Limits) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_send_request(Some(limits.silence))
            .timeout_recv_response(Some(limits.silence))
            .timeout_per_read(Some(limits.silence))
            .user_agent(concat!("quire/", env!("CARGO_PKG_VERSION")));
        let token = token.map(str::to_owned);
        Self { agent: config.build().into(), endpoint: endpoint.to_owned(), token, limits }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Asks, and follows redirects. The token goes to the hub alone, not to where it sends its clients.
    pub(super) fn get(&self, ask: Ask<'_>) -> Result<Answer, SourceError> {
        let (mut url, mut head) = (ask.url.to_owned(), None);
        for _ in 0..MAX_REDIRECTS {
            let response = self.call(&ask, &url)?;
            if head.is_none() && response.headers().contains_key("x-linked-etag") {
                head = Some(response.headers().clone());
            }
            if !response.status().is_redirection() {
                let response = self.accepted(&ask, response)?;
                return Ok(Answer { head: head.unwrap_or_else(|| response.headers().clone()), response });
            }
            if let Some(head) = head.take_if(|_| ask.head_only) {
                return Ok(Answer { head, response });
            }
            url = self.target(&ask, &url, &response)?;
        }
        Err(self.wrong(ask.what, AnswerFault::Redirects { max: MAX_REDIRECTS }))
    }

    /// All of an answer that lists something.
    pub(super) fn text(&self, ask: Ask<'_>) -> Result<Vec<u8>, SourceError> {
        let mut body = self.body(self.get(ask)?.response);
        let mut bytes = Vec::new();
        let mut piece = [0; 8192];
        loop {
            match body.read(&mut piece).map_err(|error| self.broke_off(ask.what, &error))? {
                0 => return Ok(bytes),
                len => bytes.extend_from_slice(&piece[..len]),
            }
            if bytes.len() as u64 > MAX_LISTING_BYTES {
                let fault = AnswerFault::TooLarge { max_bytes: MAX_LISTING_BYTES };
                return Err(self.wrong(ask.what, fault));
            }
        }
    }

    /// The body of an answer, as fast as it must come.
    pub(super) fn body(&self, response: Response<Body>) -> impl Read + use<> {
        Paced::new(response.into_body().into_reader(), self.limits.silence)
    }

    pub(super) fn broke_off(&self, what: &str, error: &io::Error) -> SourceError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let is_late = matches!(inner, Some(ureq::Error::Timeout(_)));
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => self.silent(what),
            _ if is_late => self.silent(what),
            _ => self.failed(what, error.to_string()),
        }
    }

    pub(super) fn failed(&self, what: &str, reason: String) -> SourceError {
        SourceError::HubFailed { endpoint: self.endpoint.clone(), what: what.to_owned(), reason }
    }

    pub(super) fn wrong(&self, what: &str, fault: AnswerFault) -> SourceError {
        SourceError::HubAnswer { endpoint: self.endpoint.clone(), what: what.to_owned(), fault }
    }

    fn silent(&self, what: &str) -> SourceError {
        let (endpoint, what) = (self.endpoint.clone(), what.to_owned());
        SourceError::HubSilent { endpoint, what, limit: self.limits.silence }
    }

    fn call(&self, ask: &Ask<'_>, url: &str) -> Result<Response<Body>, SourceError> {
        // A body that was compressed on its way has another length than the file.
        let mut request = self.agent.get(url).header("Accept-Encoding", "identity");
        if let Some(range) = ask.range {
            request = request.header("Range", range);
        }
        if let Some(token) = self.token.as_ref().filter(|_| same_origin(url, &self.endpoint)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| match error {
            ureq::Error::Timeout(_) => self.silent(ask.what),
            ureq::Error::Io(error) => self.broke_off(ask.what, &error),
            error => self.failed(ask.what, error.to_string()),
        })
    }

    /// The response, unless it is a refusal.
    fn accepted(&self, ask: &Ask<'_>, response: Response<Body>) -> Result<Response<Body>, SourceError> {
        let status = response.status().as_u16();
        if matches!(status, 200 | 206 | 416) {
            return Ok(response);
        }
        let (endpoint, what) = (self.endpoint.clone(), ask.what.to_owned());
        let (has_token, headers) = (self.token.is_some(), response.headers());
        let (words, retry_after) = (Denial::words(headers), retry_after(headers));
        Err(match status {
            401 | 403 | 404 => {
                let (reason, repo) = (Denial::of(headers), ask.repo.to_owned());
                SourceError::HubDenied { endpoint, status, what, repo, reason, words, has_token }
            }
            429 => SourceError::HubBusy { endpoint, what, retry_after, has_token },
            500.. => SourceError::HubFault { endpoint, status, what, retry_after, words },
            _ => self.failed(ask.what, format!("status {}", response.status())),
        })
    }

    /// Where a redirect leads: to a path of the same host or to another address, never from https to http.
    fn target(&self, ask: &Ask<'_>, from: &str, response: &Response<Body>) -> Result<String, SourceError> {
        let location = response.headers().get("location").and_then(|value| value.to_str().ok());
        let to = location.and_then(|location| resolve(from, location));
        let is_safe = |to: &String| !from.starts_with("https:") || to.starts_with("https:");
        to.filter(is_safe).ok_or_else(|| {
            let location = location.unwrap_or_default().escape_debug().take(200).collect();
            self.wrong(ask.what, AnswerFault::Location { location })
        })
    }
}

/// The seconds that a hub asks to wait for. (The other form, a date, counts as none.)
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A redirect's location as an address of its own.
fn resolve(from: &str, location: &str) -> Option<String> {
    let (from, to): (Uri, Uri) = (from.parse().ok()?, location.parse().ok()?);
    match (to.scheme_str(), to.authority()) {
        (Some("http" | "https"), Some(_)) => Some(location.to_owned()),
        (None, None) if location.starts_with('/') => {
            Some(format!("{}://{}{location}", from.scheme_str()?, from.authority()?))
        }
        _ => None,
    }
}

/// Whether two addresses are of one scheme, host and port.
fn same_origin(a: &str, b: &str) -> bool {
    let origin = |address: &str| {
        let uri: Uri = address.parse().ok()?;
        let port = uri.port_u16().or(if uri.scheme_str() == Some("https") { Some(443) } else { Some(80) });
        Some((uri.scheme_str()?.to_owned(), uri.host()?.to_ascii_lowercase(), port))
    };
    origin(a).is_some_and(|a| Some(a) == origin(b))
}

/// A reader whose bytes must keep coming: one that trickles is as good as silent.
struct Paced<R> {
    inner: R,
    window: Duration,
    since: Instant,
    num_bytes: u64,
}

impl<R: Read> Paced<R> {
    fn new(inner: R, silence: Duration) -> Self {
        Self { inner, window: 3 * silence, since: Instant::now(), num_bytes: 0 }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let num_bytes = self.inner.read(buffer)?;
        self.num_bytes += num_bytes as u64;
        let elapsed = self.since.elapsed();
        if elapsed >= self.window {
            if num_bytes > 0 && self.num_bytes < MIN_BYTES_PER_SECOND * elapsed.as_secs().max(1) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            (self.since, self.num_bytes) = (Instant::now(), 0);
        }
        Ok(num_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_stays_on_the_web() {
        let from = "https://hub.co/a/resolve/main/f";
        for (location, expected) in [
            ("/api/resolve-cache/f", Some("https://hub.co/api/resolve-cache/f")),
            ("https://cdn.co/f?x=1", Some("https://cdn.co/f?x=1")),
            ("file:///etc/passwd", None),
            ("ftp://cdn.co/f", None),
            ("relative", None),
            ("", None),
        ] {
            assert_eq!(resolve(from, location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn a_token_is_for_one_origin() {
        let hub = "https://hub.co";
        assert!(same_origin("https://HUB.co:443/x", hub) && same_origin("https://hub.co/x?y", hub));
        for other in
            ["http://hub.co/x", "https://hub.co:8443", "https://cdn.hub.co", "https://hub.co.evil", "x"]
        {
            assert!(!same_origin(other, hub), "{other}");
        }
    }

    #[test]
    fn a_body_that_trickles_is_given_up() {
        struct Trickle;
        impl Read for Trickle {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                std::thread::sleep(Duration::from_millis(5));
                buffer[0] = 0;
                Ok(1)
            }
        }
        let mut body = Paced::new(Trickle, Duration::from_millis(10));
        let outcome = (0..50).find_map(|_| body.read(&mut [0; 8]).err());
        assert_eq!(outcome.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }
}
