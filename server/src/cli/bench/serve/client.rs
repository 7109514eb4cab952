//! A client of completions that stamps what comes.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpStream;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    /// Host and port.
    authority: String,
    /// What paths begin with.
    base: String,
}

impl std::str::FromStr for Url {
    type Err = &'static str;

    /// `http://HOST:PORT`, with or without `/v1` behind it.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let expected = "expected http://HOST:PORT";
        let rest = text.strip_prefix("http://").ok_or(expected)?;
        let (authority, base) = rest.split_once('/').unwrap_or((rest, ""));
        let base = base.trim_end_matches('/').trim_end_matches("v1").trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        match (host.is_empty(), port.parse::<u16>()) {
            (false, Ok(port)) => {
                let base = if base.is_empty() { String::new() } else { format!("/{base}") };
                Ok(Self { authority: format!("{host}:{port}"), base })
            }
            _ => Err(expected),
        }
    }
}

/// Speaks with one server, over as many connections as are needed at once.
#[derive(Debug)]
pub(super) struct Client {
    url: Url,
    api_key: Option<String>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// One answer, as its pieces came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answered {
    /// From just before the request was sent to each piece with text or tokens.
    pub(super) pieces: Vec<Duration>,
    /// To the end.
    pub(super) end: Duration,
    pub(super) output_tokens: u64,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientError {
    #[error("{0}")]
    Connection(String),
    #[error("status {status}: {message}")]
    Status { status: u16, message: String },
    #[error("the stream ended early: {0}")]
    Stream(String),
}

impl Client {
    pub(super) fn new(url: Url, api_key: Option<String>) -> Self {
        Self { url, api_key, idle: Mutex::default() }
    }

    /// The name of the first model that is served.
    pub(super) async fn model(&self) -> Result<String, ClientError> {
        let response = self.send("GET", "/v1/models", Bytes::new()).await?.0;
        let value = read(response).await?;
        let name = value.pointer("/data/0/id").and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| ClientError::Stream("/v1/models names no model".to_owned()))
    }

    /// Sends a completion that streams, with its usage at the end.
    pub(super) async fn complete(&self, body: Bytes) -> Result<Answered, ClientError> {
        let started = Instant::now();
        let (response, connection) = self.send("POST", "/v1/completions", body).await?;
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            let message = read(response).await?.pointer("/error/message").map(Value::to_string);
            return Err(ClientError::Status { status, message: message.unwrap_or_default() });
        }
        let mut answered = Answered::default();
        let mut events = Events::default();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(connection_error)?;
            let now = started.elapsed();
            if let Some(bytes) = frame.data_ref() {
                events.take(bytes, |event| answered.note(event, now))?;
            }
        }
        answered.end = started.elapsed();
        if !events.is_done {
            return Err(ClientError::Stream("there was no [DONE]".to_owned()));
        }
        self.idle.lock().push(connection);
        Ok(answered)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), ClientError> {
        let mut connection = self.connection().await?;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url.base));
        request = request
            .header(header::HOST, &self.url.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(connection_error)?;
        let response = connection.send_request(request).await.map_err(connection_error)?;
        Ok((response, connection))
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        loop {
            let idle = self.idle.lock().pop();
            match idle {
                Some(connection) if connection.is_ready() => return Ok(connection),
                Some(_) => {}
                None => break,
            }
        }
        let stream = TcpStream::connect(&self.url.authority).await.map_err(connection_error)?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(connection_error)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl Answered {
    /// Takes the data of an event. Only the last one, with the usage, is read: the others are stamped.
    fn note(&mut self, event: &[u8], now: Duration) -> Result<(), ClientError> {
        let has = |part: &[u8]| event.windows(part.len()).any(|window| window == part);
        if has(b"\"choices\":[]") || has(b"\"choices\": []") {
            let value: Value =
                serde_json::from_slice(event).map_err(|error| ClientError::Stream(error.to_string()))?;
            self.output_tokens =
                value.pointer("/usage/completion_tokens").and_then(Value::as_u64).unwrap_or(0);
        } else if event.starts_with(b"{\"error\"") {
            return Err(ClientError::Stream(String::from_utf8_lossy(event).into_owned()));
        } else {
            self.pieces.push(now);
        }
        Ok(())
    }
}

/// Events out of the bytes of a body.
#[derive(Debug, Default)]
struct Events {
    rest: Vec<u8>,
    is_done: bool,
}

impl Events {
    fn take(
        &mut self,
        bytes: &[u8],
        mut note: impl FnMut(&[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        self.rest.extend_from_slice(bytes);
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].windows(2).position(|window| window == b"\n\n") {
            let event = &self.rest[begin..begin + length];
            match event.strip_prefix(b"data: ") {
                Some(b"[DONE]") => self.is_done = true,
                Some(data) => note(data)?,
                None => {}
            }
            begin += length + 2;
        }
        self.rest.drain(..begin);
        Ok(())
    }
}

async fn read(response: Response<Incoming>) -> Result<Value, ClientError> {
    let bytes = response.into_body().collect().await.map_err(connection_error)?.to_bytes();
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn connection_error(error: impl std::error::Error) -> ClientError {
    ClientError::Connection(crate::error::with_causes(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read() {
        let of = |text: &str| text.parse::<Url>().map(|url| (url.authority, url.base));
        let there = |authority: &str, base: &str| Ok((authority.to_owned(), base.to_owned()));
        assert_eq!(of("http://127.0.0.1:8000"), there("127.0.0.1:8000", ""));
        assert_eq!(of("http://host/v1/"), there("host:80", ""));
        assert_eq!(of("http://host:1/base/v1"), there("host:1", "/base"));
        for wrong in ["https://host", "host:80", "http://:80", "http://host:x"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_are_found_however_bytes_are_cut() {
        let body = b"data: {\"choices\":[{}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n\n";
        for cut in 0..body.len() {
            let (mut events, mut answered) = (Events::default(), Answered::default());
            for part in [&body[..cut], &body[cut..]] {
                events.take(part, |event| answered.note(event, Duration::ZERO)).expect("no error");
            }
            assert_eq!(
                (answered.pieces.len(), answered.output_tokens, events.is_done),
                (1, 7, true),
                "{cut}"
            );
        }
    }
}
