//! What browsers may do with pages of other origins.

use std::str::FromStr;

use axum::http::uri::Authority;
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
        let origins = "origins as browsers send them, such as https://example.org: small letters, no path, no usual port";
        let origins = parse::<Origin>("allowed_origins", &self.origins, origins)?;
        let methods = parse::<Method>("allowed_methods", &self.methods, "methods such as POST")?;
        let headers = parse::<HeaderName>("allowed_headers", &self.headers, "names of headers")?;
        let mirrors = self.allow_credentials;
        let origins = match origins {
            Some(origins) => AllowOrigin::list(origins.into_iter().map(|origin| origin.0)),
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

/// An origin as browsers write it; `null` is that of files.
struct Origin(HeaderValue);

impl FromStr for Origin {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_origin = text == "null" || is_origin(text).unwrap_or(false);
        text.parse().ok().filter(|_| is_origin).map(Self).ok_or(())
    }
}

/// Whether a browser would send that: scheme, host and a port that is not the scheme's own, in small letters. Anything else is
/// never equal to what it sends.
fn is_origin(text: &str) -> Option<bool> {
    let (scheme, authority) = text.split_once("://")?;
    let parsed: Authority = authority.parse().ok()?;
    let port = authority.strip_prefix(parsed.host())?;
    let is_port = port.is_empty() || parsed.port_u16().is_some_and(|port| port > 0);
    let is_own = matches!((scheme, port), ("http", ":80") | ("https", ":443"));
    let is_plain = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.contains(|c: char| c.is_ascii_uppercase() || !c.is_ascii() || c == '*');
    Some(is_port && !is_own && is_plain)
}

/// None where everything is allowed.
fn parse<T: FromStr>(
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

    #[test]
    fn what_no_browser_sends_is_no_origin() {
        let layer = |origin: &str| {
            let origins = vec!["https://example.org".to_owned(), origin.to_owned()];
            CorsSettings { origins, ..CorsSettings::default() }.layer()
        };
        for origin in ["http://localhost:3000", "app://x", "http://[::1]:8080", "null", "*"] {
            assert!(layer(origin).is_ok(), "{origin}");
        }
        let odd = [
            "http://a:99999",
            "http://a:0",
            "http://a:",
            "http://u@a",
            "http://a?x",
            "http://*.a.b",
            "HTTP://a",
        ];
        let odd = odd.into_iter().chain(["https://a.b:443", "http://é.de", "https://[::1]/", "https://A.b"]);
        let odd =
            odd.chain(["[1", "example.org", "https://example.org/", "https://", "://a", "[\"https://a.b\""]);
        for origin in odd {
            let error = layer(origin).expect_err(origin).to_string();
            assert!(
                error.contains("allowed_origins has") && error.contains("as browsers send them"),
                "{error}"
            );
        }
    }
}
