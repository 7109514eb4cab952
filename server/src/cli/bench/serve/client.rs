//! Completions whose pieces are stamped as they come.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::Bytes;
use serde_json::Value;

use crate::cli::remote::{Client, ClientError, Events, connection_error, read};

/// One answer, as its pieces came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answered {
    /// From just before the request was sent to each piece with text or tokens.
    pub(super) pieces: Vec<Duration>,
    /// To the end.
    pub(super) end: Duration,
    pub(super) output_tokens: u64,
}

/// The name of the first model that is served.
pub(super) async fn model(client: &Client) -> Result<String, ClientError> {
    let (response, _) = client.send("GET", "/v1/models", Bytes::new()).await?;
    let value = read(response).await?;
    let name = value.pointer("/data/0/id").and_then(Value::as_str);
    name.map(str::to_owned).ok_or_else(|| ClientError::Stream("/v1/models names no model".to_owned()))
}

/// Sends a completion that streams, with its usage at the end.
pub(super) async fn complete(client: &Client, body: Bytes) -> Result<Answered, ClientError> {
    let started = Instant::now();
    let (response, connection) = client.send("POST", "/v1/completions", body).await?;
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
    client.keep(connection);
    Ok(answered)
}

impl Answered {
    /// Takes the data of an event. Only what has usage is read, which some servers send by itself and others with the last
    /// piece; the others are stamped.
    fn note(&mut self, event: &[u8], now: Duration) -> Result<(), ClientError> {
        let has = |part: &[u8]| event.windows(part.len()).any(|window| window == part);
        if event.starts_with(b"{\"error\"") {
            return Err(ClientError::Stream(String::from_utf8_lossy(event).into_owned()));
        }
        if !has(b"\"usage\":{") && !has(b"\"usage\": {") {
            self.pieces.push(now);
            return Ok(());
        }
        let value: Value =
            serde_json::from_slice(event).map_err(|error| ClientError::Stream(error.to_string()))?;
        self.output_tokens = value.pointer("/usage/completion_tokens").and_then(Value::as_u64).unwrap_or(0);
        if value.pointer("/choices/0/text").and_then(Value::as_str).is_some_and(|text| !text.is_empty()) {
            self.pieces.push(now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_stamped_and_the_usage_is_read() {
        let mut answered = Answered::default();
        for event in [r#"{"choices":[{}]}"#, r#"{"choices":[],"usage":{"completion_tokens":7}}"#] {
            answered.note(event.as_bytes(), Duration::from_secs(1)).expect("no error");
        }
        assert_eq!((answered.pieces.len(), answered.output_tokens), (1, 7));
        for event in [
            r#"{"choices":[{"text":"a"}],"usage":{"completion_tokens":8}}"#,
            r#"{"choices":[{"text":""}],"usage": {"completion_tokens":9}}"#,
        ] {
            answered.note(event.as_bytes(), Duration::from_secs(1)).expect("no error");
        }
        assert_eq!((answered.pieces.len(), answered.output_tokens), (2, 9));
        assert!(answered.note(br#"{"error": {}}"#, Duration::ZERO).is_err());
    }
}
