//! Bodies of requests: JSON objects, read field by field.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde_json::{Map, Value};

use super::body_work::BodyPlace;
use super::caller::Caller;
use super::deadline::Deadline;
use super::error::{ApiError, shortened_name};
use super::service::Service;

/// A body that is a JSON object. Fields are taken out of it; what is left at the end is what nobody knew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    fields: Map<String, Value>,
    /// Of a large one, until it is gone.
    place: Option<BodyPlace>,
    /// When its last byte came, where it came from a client.
    came_at: Option<Instant>,
    /// Fields, or parts of them, that were taken and have no effect.
    without_effect: Vec<String>,
}

impl Body {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let refuse = |message| ApiError::new(StatusCode::BAD_REQUEST, message);
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| match field_out_of_range(&error, bytes) {
                Some(field) => {
                    let field = shortened_name(&field);
                    let message = format!("{field} holds a number that 64 bits do not hold");
                    ApiError::bad_field(field.as_ref(), message)
                }
                None => refuse(unread(&error)),
            })?;
        match value {
            Value::Object(fields) => Ok(Self { fields, ..Self::default() }),
            other => Err(refuse(format!("the body is {}: expected a JSON object", kind_of(&other)))),
        }
    }

    /// Its place among the large ones, which what is done with it has to hold.
    pub(crate) fn take_place(&mut self) -> Option<BodyPlace> {
        self.place.take()
    }

    /// The moment from which a client's deadline counts.
    pub(crate) fn came_at(&self) -> Instant {
        self.came_at.unwrap_or_else(Instant::now)
    }

    /// Takes a switch; `null` counts as absent.
    pub(crate) fn take_bool(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take_value(field) {
            None => Ok(None),
            Some(Value::Bool(given)) => Ok(Some(given)),
            Some(other) => Err(wrong(field, &other, "true or false")),
        }
    }

    /// As [`take_bool`](Self::take_bool), for a text.
    pub(crate) fn take_text(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take_value(field) {
            None => Ok(None),
            Some(Value::String(given)) => Ok(Some(given)),
            Some(other) => Err(wrong(field, &other, "a string")),
        }
    }

    /// As [`take_bool`](Self::take_bool), for a whole number.
    pub(crate) fn take_integer(&mut self, field: &str) -> Result<Option<i64>, ApiError> {
        match self.take_value(field) {
            None => Ok(None),
            Some(given) => integer(&given).map(Some).ok_or_else(|| wrong(field, &given, "a whole number")),
        }
    }

    /// As [`take_bool`](Self::take_bool), for a number.
    pub(crate) fn take_number(&mut self, field: &str) -> Result<Option<f64>, ApiError> {
        match self.take_value(field) {
            None => Ok(None),
            Some(given) => given.as_f64().map(Some).ok_or_else(|| wrong(field, &given, "a number")),
        }
    }

    /// A whole number from 0 that stays, where there is one; a wrong one is refused by those who take it.
    pub(crate) fn peek_count(&self, field: &str) -> Option<u64> {
        let given = self.peek(field)?;
        given.as_u64().or_else(|| integer(given)?.try_into().ok())
    }

    /// Refuses a field that is no text, and leaves it.
    pub(crate) fn check_text(&self, field: &str) -> Result<(), ApiError> {
        match self.peek(field) {
            None | Some(Value::String(_)) => Ok(()),
            Some(other) => Err(wrong(field, other, "a string")),
        }
    }

    /// Takes a field as it is; `null` counts as absent.
    pub(crate) fn take_value(&mut self, field: &str) -> Option<Value> {
        #[cfg(test)]
        asked::note(field);
        self.fields.remove(field).filter(|value| !value.is_null())
    }

    /// A field that stays; `null` counts as absent.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        #[cfg(test)]
        asked::note(field);
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// Takes those of `fields` that are there.
    pub(crate) fn take_all(&mut self, fields: &[&str]) -> Map<String, Value> {
        let taken = fields
            .iter()
            .filter_map(|field| self.take_value(field).map(|value| ((*field).to_owned(), value)));
        taken.collect()
    }

    /// Notes fields that were taken and have no effect all the same.
    pub(crate) fn leave(&mut self, fields: &[&str]) {
        self.without_effect.extend(fields.iter().map(|field| (*field).to_owned()));
    }

    /// The same of what nobody knows within a field.
    pub(crate) fn leave_within<'a>(&mut self, field: &str, names: impl IntoIterator<Item = &'a str>) {
        self.without_effect.extend(names.into_iter().map(|name| format!("{field}.{name}")));
    }

    /// The names of what has no effect: what is left, and what was noted. Fields that are `null` say nothing.
    pub(crate) fn rest(&self) -> Vec<&str> {
        let left = self.fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str());
        left.chain(self.without_effect.iter().map(String::as_str)).collect()
    }
}

impl FromRequest<Arc<Service>> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, ApiError> {
        check_content_type(&request)?;
        check_encoding(&request)?;
        check_length(&request, service.settings.max_body_bytes)?;
        let caller = Caller::of_headers(request.headers());
        let read = async {
            let bytes = received(request, service).await?;
            let came_at = Instant::now();
            // A deadline that is none is refused by those who answer.
            let deadline = Deadline::of(&caller, came_at).unwrap_or_default();
            let body = deadline.within(parsed(bytes, service)).await?;
            Ok(Self { came_at: Some(came_at), ..body })
        };
        service.lifecycle.while_open(read).await
    }
}

/// The bytes of a body, once all have come.
async fn received(request: Request, service: &Arc<Service>) -> Result<Bytes, ApiError> {
    let timeout = service.settings.body_timeout;
    let bytes = tokio::time::timeout(timeout, Bytes::from_request(request, service)).await.map_err(|_| {
        let message = format!("the body has not come within {} s", timeout.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    })?;
    bytes.map_err(|rejected| unreadable(rejected.status(), rejected.body_text()))
}

/// What they say. A large body has its place from here on.
async fn parsed(bytes: Bytes, service: &Service) -> Result<Body, ApiError> {
    let place = service.body_work.place(bytes.len()).await;
    let body = service.body_work.run(place.clone(), move || Body::parse(&bytes)).await?;
    Ok(Body { place, ..body })
}

/// What is wrong with bytes that are not read as JSON.
fn unread(error: &serde_json::Error) -> String {
    match error.to_string() {
        text if text.starts_with("recursion limit exceeded") => {
            "the body is nested too deeply: expected at most 127 levels of lists and objects".to_owned()
        }
        text => format!("the body is not JSON: {text}"),
    }
}

/// The field that a number stands in which is too large for any, if that is what is wrong.
fn field_out_of_range(error: &serde_json::Error, bytes: &[u8]) -> Option<String> {
    if !error.to_string().starts_with("number out of range") {
        return None;
    }
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let num_before: usize = lines.by_ref().take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let end = bytes.len().min(num_before + error.column());
    last_field(&bytes[..end])
}

/// The last field of the outer object in the beginning of its text.
fn last_field(json: &[u8]) -> Option<String> {
    let (mut depth, mut field, mut i) = (0_usize, None, 0);
    while i < json.len() {
        match json[i] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let start = i;
                i += 1;
                while i < json.len() && json[i] != b'"' {
                    i += if json[i] == b'\\' { 2 } else { 1 };
                }
                let is_name =
                    json.get(i + 1..)?.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
                if depth == 1 && is_name {
                    field = serde_json::from_slice(&json[start..=i]).ok();
                }
            }
            _ => {}
        }
        i += 1;
    }
    field
}

/// A whole number, also one that is written with a fraction of zero.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    // The first one beyond 64 bits, on either side.
    const BEYOND: f64 = (1u64 << 63) as f64;
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < BEYOND;
    value.as_i64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as i64))
}

fn unreadable(status: StatusCode, why: String) -> ApiError {
    let message = match status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            "the body is larger than the server takes (--max-body-bytes)".to_owned()
        }
        _ => why,
    };
    ApiError::new(status, message)
}

/// A body that says that it is too large is not waited for.
fn check_length(request: &Request, max_body_bytes: usize) -> Result<(), ApiError> {
    let given = request.headers().get(header::CONTENT_LENGTH);
    let length = given.and_then(|given| given.to_str().ok()?.parse::<u64>().ok());
    match length {
        Some(length) if length > max_body_bytes as u64 => {
            Err(unreadable(StatusCode::PAYLOAD_TOO_LARGE, String::new()))
        }
        _ => Ok(()),
    }
}

fn check_content_type(request: &Request) -> Result<(), ApiError> {
    let given =
        request.headers().get(header::CONTENT_TYPE).map(|given| given.to_str().unwrap_or("unreadable"));
    let kind = given.and_then(|given| given.split(';').next()).map(str::trim);
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message = format!("content-type is {}: expected application/json", given.unwrap_or("missing"));
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Bodies are read as they are.
fn check_encoding(request: &Request) -> Result<(), ApiError> {
    let given = request.headers().get_all(header::CONTENT_ENCODING).iter();
    let given: Vec<_> = given.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let mut codings = given.iter().flat_map(|value| value.split(',')).map(str::trim);
    match codings.find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity")) {
        None => Ok(()),
        Some(coding) => {
            let message = format!("content-encoding is {coding}: expected none, or identity");
            let param = Some("Content-Encoding".to_owned());
            Err(ApiError { param, ..ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message) })
        }
    }
}

fn wrong(field: &str, given: &Value, expected: &str) -> ApiError {
    ApiError::bad_field(field, format!("{field} is {}: expected {expected}", shown(given)))
}

/// A value as it was given, or its kind where it is long.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 60 { text } else { kind_of(value).to_owned() }
}

pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Which fields this thread has asked bodies for: tests hold the document to it.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local!(static ASKED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) });

    pub(super) fn note(field: &str) {
        ASKED.with_borrow_mut(|asked| asked.insert(field.to_owned()));
    }

    /// Those since the last call.
    pub(crate) fn take() -> BTreeSet<String> {
        ASKED.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for bytes in [&b""[..], b"[]", b"1", b"{\"a\":", b"\xff\xfe", "[".repeat(5000).as_bytes()] {
            let error = Body::parse(bytes).expect_err("no object");
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{error:?}");
        }
    }

    #[test]
    fn a_wrong_type_names_field_and_value() {
        let mut body = Body::parse(br#"{"stream": 1, "echo": null, "n": 1.5}"#).expect("an object");
        let error = body.take_bool("stream").expect_err("a number");
        assert_eq!(error.message, "stream is 1: expected true or false");
        assert_eq!(error.param.as_deref(), Some("stream"));
        assert_eq!(body.take_bool("echo"), Ok(None));
        assert_eq!(
            body.take_integer("n").expect_err("a fraction").message,
            "n is 1.5: expected a whole number"
        );
        assert!(body.rest().is_empty());
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        for (json, expected) in [
            ("1", Some(1)),
            ("-2.0", Some(-2)),
            ("1e3", Some(1000)),
            ("1e18", Some(1_000_000_000_000_000_000)),
            ("-1e18", Some(-1_000_000_000_000_000_000)),
            ("1e19", None),
            ("1.5", None),
            ("1e300", None),
            ("\"1\"", None),
        ] {
            assert_eq!(integer(&serde_json::from_str(json).expect("JSON")), expected, "{json}");
        }
    }

    #[test]
    fn a_number_that_nothing_holds_is_told_with_its_field() {
        let digits = "9".repeat(400);
        for (json, field) in [
            (r#"{"a": "\": 1e999", "seed": 1e999}"#.to_owned(), "seed"),
            (format!("{{\"n\": 1,\n \"max_tokens\":\n  {digits}, \"x\": {{}}}}"), "max_tokens"),
            (format!("{{\"prompt\": [[1], [2, {digits}]]}}"), "prompt"),
            (r#"{"x": {"y": 1}, "logit_bias": {"5": -1e400}, "n": 2}"#.to_owned(), "logit_bias"),
        ] {
            let error = Body::parse(json.as_bytes()).expect_err(&json);
            assert_eq!(error.param.as_deref(), Some(field), "{}", error.message);
            assert_eq!(error.message, format!("{field} holds a number that 64 bits do not hold"));
        }
        let error = Body::parse(b"[1e999]").expect_err("no object");
        assert!(error.param.is_none() && error.message.contains("out of range"), "{}", error.message);
    }

    #[test]
    fn a_body_that_is_nested_deeply_is_not_called_broken() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(200), "]".repeat(200));
        let error = Body::parse(deep.as_bytes()).expect_err("200 levels");
        assert!(error.message.contains("at most 127 levels"), "{}", error.message);
        let least = format!("{{\"a\": {}1{}}}", "[".repeat(126), "]".repeat(126));
        assert!(Body::parse(least.as_bytes()).is_ok());
    }
}
