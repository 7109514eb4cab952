//! API keys.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// Keys that open the server; where there are none, it is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiKeys(Arc<[[u8; 32]]>);

impl ApiKeys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| digest(key)).collect())
    }

    /// Whether a key is one of these. Digests are compared, so that the time taken says nothing of the keys.
    fn contains(&self, given: &str) -> bool {
        let given = digest(given);
        self.0.iter().fold(false, |found, key| found | (*key == given))
    }

    fn admits(&self, request: &Request) -> bool {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let scheme_and_key = header.and_then(|header| header.split_once(' '));
        scheme_and_key
            .is_some_and(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer") && self.contains(key.trim()))
    }
}

/// Lets requests with a key pass, those that ask for the server's health, and those by which browsers ask what they may do.
pub(crate) async fn check(State(keys): State<ApiKeys>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_open = path == "/ping" || path == "/health" || path.starts_with("/health/");
    if keys.0.is_empty() || is_open || request.method() == Method::OPTIONS || keys.admits(&request) {
        return next.run(request).await;
    }
    let message = match request.headers().contains_key(header::AUTHORIZATION) {
        true => "the API key is not one of this server's",
        false => "an API key is missing: expected the header Authorization: Bearer KEY",
    };
    ApiError::new(StatusCode::UNAUTHORIZED, message).into_response()
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_keys_are_known() {
        let keys = ApiKeys::new(&["one".to_owned(), "two".to_owned()]);
        for (given, expected) in [("one", true), ("two", true), ("on", false), ("", false), ("one ", false)] {
            assert_eq!(keys.contains(given), expected, "{given:?}");
        }
    }
}
