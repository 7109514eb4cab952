//! Names of requests.

use uuid::Uuid;

use super::caller::Caller;

/// Bytes of a name that a client may choose.
const MAX_LEN: usize = 128;

/// The name a client gives in the body or in `X-Request-Id`, behind `prefix`; else a new one.
pub(crate) fn of(prefix: &str, caller: &Caller, in_body: Option<String>) -> String {
    let given = in_body.or_else(|| caller.request_id.clone()).filter(|given| is_usable(given));
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
        let headers = Caller { request_id: Some("mine".to_owned()), ..Caller::default() };
        assert_eq!(of("cmpl", &headers, None), "cmpl-mine");
        assert_eq!(of("cmpl", &headers, Some("other".to_owned())), "cmpl-other");
        let fresh = of("cmpl", &headers, Some("a\nb".to_owned()));
        assert!(fresh != "cmpl-a\nb" && fresh.len() == "cmpl-".len() + 32, "{fresh}");
    }
}
