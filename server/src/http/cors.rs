//! What browsers may do with pages of other origins.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// Whom browsers let speak with the server; `*` is everybody and everything.
#[derive(Clone, Debug)]
pub(crate) struct CorsSettings {
    pub(crate) origins: Vec<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) headers: Vec<String>,
    pub(crate) allow_credentials: bool,
}

impl Default for CorsSettings {
    fn default() -> Self {
        let all = || vec!["*".to_owned()];
        Self { origins: all(), methods: all(), headers: all(), allow_credentials: false }
    }
}

/// A setting that no header can be made of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} has {given:?}: expected {expected}")]
pub struct CorsError {
    field: &'static str,
    given: String,
    expected: &'static str,
}

impl CorsSettings {
    /// The layer that answers browsers.
    ///
    /// # Errors
    ///
    /// The first value that is none. With credentials, `*` means whatever the browser asks for, as in vLLM.
    pub(crate) fn layer(&self) -> Result<CorsLayer, CorsError> {
        let origins =
            parse::<HeaderValue>("allowed_origins", &self.origins, "origins such as https://example.org")?;
        let methods = parse::<Method>("allowed_methods", &self.methods, "methods such as POST")?;
        let headers = parse::<HeaderName>("allowed_headers", &self.headers, "names of headers")?;
        let mirrors = self.allow_credentials;
        let origins = match origins {
            Some(origins) => AllowOrigin::list(origins),
            None if mirrors => AllowOrigin::mirror_request(),
            None => AllowOrigin::any(),
        };
        let methods = match methods {
            Some(methods) => AllowMethods::list(methods),
            None if mirrors => AllowMethods::mirror_request(),
            None => AllowMethods::any(),
        };
        let headers = match headers {
            Some(headers) => AllowHeaders::list(headers),
            // `*` would not stand for Authorization.
            None => AllowHeaders::mirror_request(),
        };
        let layer = CorsLayer::new().allow_origin(origins).allow_methods(methods).allow_headers(headers);
        Ok(layer.allow_credentials(self.allow_credentials))
    }
}

/// None where everything is allowed.
fn parse<T: std::str::FromStr>(
    field: &'static str,
    given: &[String],
    expected: &'static str,
) -> Result<Option<Vec<T>>, CorsError> {
    if given.iter().any(|one| one == "*") {
        return Ok(None);
    }
    let read = |one: &String| one.parse().map_err(|_| CorsError { field, given: one.clone(), expected });
    given.iter().map(read).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_header_is_named() {
        assert!(CorsSettings::default().layer().is_ok());
        let odd = CorsSettings { headers: vec!["a b".to_owned()], ..CorsSettings::default() };
        let error = odd.layer().expect_err("a space");
        assert_eq!(error.to_string(), "allowed_headers has \"a b\": expected names of headers");
        let all = CorsSettings { allow_credentials: true, ..CorsSettings::default() };
        assert!(all.layer().is_ok());
    }
}
