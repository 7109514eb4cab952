//! Who asks, and under what conditions: what headers say.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::auth::KeyId;
use super::connection::Connection;
use super::error::ApiError;

/// The sender of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) key: KeyId,
    /// The name it gives its request in `X-Request-Id`.
    pub(crate) request_id: Option<String>,
    /// It wants to hear of fields without effect: `X-Quire-Strict: 1`.
    pub(crate) is_strict: bool,
    /// What it wrote in `X-Request-Timeout`.
    pub(crate) timeout: Option<String>,
    /// Where its answer goes out over.
    pub(crate) connection: Option<Connection>,
}

/// Some thirty years: a clock has that much room.
const MAX_TIMEOUT_S: f64 = 1e9;

impl Caller {
    /// What headers alone say.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        Self {
            request_id: text(headers, "x-request-id"),
            is_strict: headers.get("x-quire-strict").is_some_and(|value| value == "1"),
            timeout: all_text(headers, "x-request-timeout"),
            ..Self::default()
        }
    }

    /// How long the request may take, in the queue too.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        let Some(given) = &self.timeout else { return Ok(None) };
        let seconds = given.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds <= MAX_TIMEOUT_S);
        let refuse = || {
            let message = format!(
                "X-Request-Timeout is {given:?}: expected a number of seconds above 0, at most {MAX_TIMEOUT_S}"
            );
            ApiError::bad_field("X-Request-Timeout", message)
        };
        seconds.map(Duration::from_secs_f64).map(Some).ok_or_else(refuse)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self {
            key: parts.extensions.get().copied().unwrap_or_default(),
            connection: parts.extensions.get().cloned(),
            ..Self::of_headers(&parts.headers)
        })
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// All values of a header, as HTTP joins them.
fn all_text(headers: &HeaderMap, name: &str) -> Option<String> {
    let values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let all: Vec<_> = values.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_number_of_seconds() {
        let timeout = |text: &str| Caller { timeout: Some(text.to_owned()), ..Caller::default() }.timeout();
        assert_eq!(timeout("1.5"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(timeout("1e9"), Ok(Some(Duration::from_secs(1_000_000_000))));
        for wrong in ["0", "-0", "-1", "soon", "NaN", "inf", "infinity", "1e300", "1e400", "", "1, 2"] {
            let error = timeout(wrong).expect_err(wrong);
            assert!(error.message.ends_with("above 0, at most 1000000000"), "{}", error.message);
        }
        assert_eq!(Caller::default().timeout(), Ok(None));
    }

    #[test]
    fn two_deadlines_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(all_text(&headers, "x-request-timeout"), None);
        for value in ["5", "7"] {
            headers.append("x-request-timeout", value.parse().expect("a value"));
        }
        assert_eq!(all_text(&headers, "x-request-timeout").as_deref(), Some("5, 7"));
    }
}
