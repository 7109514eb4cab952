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

    /// Which of these a key is. All digests are compared, whatever is found, so that the time taken says nothing of the keys.
    fn find(&self, given: &str) -> Option<KeyId> {
        let given = digest(given);
        let places = (1..).zip(self.0.iter());
        places.fold(None, |found, (place, key)| if *key == given { Some(KeyId(place)) } else { found })
    }

    fn of(&self, request: &Request) -> Option<KeyId> {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (scheme, key) = header.and_then(|header| header.split_once(' '))?;
        self.find(key.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
    }
}

/// Which key a request came with: its place in the list, from 1; 0 where none was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct KeyId(pub(crate) usize);

/// Lets requests with a key pass, those that ask for the server's health, and those by which browsers ask what they may do.
pub(crate) async fn check(State(keys): State<ApiKeys>, mut request: Request, next: Next) -> Response {
    let is_open = is_open(request.uri().path());
    let key = keys.of(&request);
    if keys.0.is_empty() || is_open || request.method() == Method::OPTIONS || key.is_some() {
        request.extensions_mut().insert(key.unwrap_or_default());
        return next.run(request).await;
    }
    let message = match request.headers().contains_key(header::AUTHORIZATION) {
        true => "the API key is not one of this server's",
        false => "an API key is missing: expected the header Authorization: Bearer KEY",
    };
    ApiError::new(StatusCode::UNAUTHORIZED, message).into_response()
}

/// Whether a path is answered without a key. The pages ask for the key themselves, and hold nothing.
pub(crate) fn is_open(path: &str) -> bool {
    ["/", "/docs", "/ping", "/health"].contains(&path) || path.starts_with("/health/")
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
        for (given, place) in [("one", Some(1)), ("two", Some(2)), ("on", None), ("", None), ("one ", None)] {
            assert_eq!(keys.find(given), place.map(KeyId), "{given:?}");
        }
    }
}
