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

impl Caller {
    /// How long the request may take, in the queue too.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        let Some(given) = &self.timeout else { return Ok(None) };
        let seconds = given.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds <= 1e9);
        let refuse = || {
            let message = format!("X-Request-Timeout is {given:?}: expected a number of seconds above 0");
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
            request_id: text(&parts.headers, "x-request-id"),
            is_strict: parts.headers.get("x-quire-strict").is_some_and(|value| value == "1"),
            timeout: text(&parts.headers, "x-request-timeout"),
            connection: parts.extensions.get().cloned(),
        })
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_number_of_seconds() {
        let timeout = |text: &str| Caller { timeout: Some(text.to_owned()), ..Caller::default() }.timeout();
        assert_eq!(timeout("1.5"), Ok(Some(Duration::from_millis(1500))));
        for wrong in ["0", "-1", "soon", "NaN", "inf", "1e30", ""] {
            assert!(timeout(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Caller::default().timeout(), Ok(None));
    }
}
