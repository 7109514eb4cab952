//! Names of requests.

use axum::http::HeaderMap;
use uuid::Uuid;

/// Bytes of a name that a client may choose.
const MAX_LEN: usize = 128;

/// The name a client gives in `X-Request-Id` or in the body, behind `prefix`; else a new one.
pub(crate) fn of(prefix: &str, headers: &HeaderMap, in_body: Option<String>) -> String {
    let in_header = headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let given = in_body.or(in_header).filter(|given| is_usable(given));
    format!("{prefix}-{}", given.unwrap_or_else(|| Uuid::new_v4().simple().to_string()))
}

fn is_usable(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_LEN && name.chars().all(|c| c.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_choose_a_name_that_fits_a_log() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "mine".parse().expect("a header"));
        assert_eq!(of("cmpl", &headers, None), "cmpl-mine");
        assert_eq!(of("cmpl", &headers, Some("other".to_owned())), "cmpl-other");
        let fresh = of("cmpl", &headers, Some("a\nb".to_owned()));
        assert!(fresh != "cmpl-a\nb" && fresh.len() == "cmpl-".len() + 32, "{fresh}");
    }
}
