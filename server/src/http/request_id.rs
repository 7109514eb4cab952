//! Names of requests.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use super::caller::Caller;
use super::error::{ApiError, shortened_name};

/// Bytes of a name that a client may choose.
const MAX_LEN: usize = 128;

const EXPECTED: &str = "expected 1 to 128 visible characters of ASCII";

/// How the names of answers begin, with a dash behind.
const PREFIXES: [&str; 2] = ["cmpl", "chatcmpl"];

/// Where a client names its request, and is told how it is called.
pub(super) static HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The name a client gives in the body or in `X-Request-Id`, behind `prefix`; else a new one.
pub(crate) fn of(prefix: &str, caller: &Caller, in_body: Option<String>) -> String {
    let given = in_body.or_else(|| caller.request_id.clone()).filter(|given| is_usable(given.as_bytes()));
    format!("{prefix}-{}", given.unwrap_or_else(fresh))
}

/// Checks the one in a body.
///
/// # Errors
///
/// 400 for one that is none.
pub(crate) fn check(given: &str) -> Result<(), ApiError> {
    if is_usable(given.as_bytes()) {
        return Ok(());
    }
    let message = format!("request_id is {:?}: {EXPECTED}", shortened_name(given));
    Err(ApiError::bad_field("request_id", message))
}

/// What became of a name that came in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// What the request is called.
    pub(super) name: HeaderValue,
    /// Why that is another name than was given.
    pub(super) fault: Option<&'static str>,
}

/// Puts a new name in the place of one that can be none. None where none was given.
pub(super) fn settle(headers: &mut HeaderMap) -> Option<Settled> {
    let mut given = headers.get_all(&HEADER).iter();
    let fault = match (given.next()?, given.next()) {
        (_, Some(_)) => "it is given several times: expected one",
        (name, None) if is_usable(name.as_bytes()) => {
            return Some(Settled { name: name.clone(), fault: None });
        }
        (name, None) if name.is_empty() => "it is empty: expected a name",
        (name, None) if name.len() > MAX_LEN => "it is too long: expected at most 128 characters",
        _ => "it has a character that is none of a name: expected visible ones of ASCII",
    };
    let name = HeaderValue::from_str(&fresh()).expect("hexadecimal digits");
    headers.insert(&HEADER, name.clone());
    Some(Settled { name, fault: Some(fault) })
}

fn fresh() -> String {
    Uuid::new_v4().simple().to_string()
}

fn is_usable(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= MAX_LEN && name.iter().all(u8::is_ascii_graphic)
}

/// Whether `given` means the request that the engine calls `name`: by the name of its answer, by the one that its client chose,
/// or by either with the place of a prompt behind.
pub(crate) fn is_meant(name: &str, given: &str) -> bool {
    let chosen = PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix)?.strip_prefix('-'));
    std::iter::once(name)
        .chain(chosen)
        .any(|name| name.strip_prefix(given).is_some_and(|rest| rest.is_empty() || is_place(rest)))
}

/// What stands behind the name of a request of several prompts: `-0`.
fn is_place(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_choose_a_name_that_fits_a_log() {
        let headers = Caller { request_id: Some("mine".to_owned()), ..Caller::default() };
        assert_eq!(of("cmpl", &headers, None), "cmpl-mine");
        assert_eq!(of("cmpl", &headers, Some("other".to_owned())), "cmpl-other");
        for odd in ["a\nb", "", "ü", &"x".repeat(129)] {
            assert_eq!(check(odd).expect_err(odd).param.as_deref(), Some("request_id"));
        }
        assert_eq!(check("a-b_c"), Ok(()));
    }

    #[test]
    fn a_name_that_is_none_gives_way_to_a_new_one() {
        let settled = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&HEADER, HeaderValue::from_bytes(value).expect("a value"));
            }
            let settled = settle(&mut headers);
            assert_eq!(headers.get(&HEADER), settled.as_ref().map(|settled| &settled.name));
            assert_eq!(headers.get_all(&HEADER).iter().count(), usize::from(settled.is_some()));
            settled
        };
        assert_eq!(settled(&[]), None);
        let kept = settled(&[b"mine"]).expect("one");
        assert_eq!((kept.name.as_bytes(), kept.fault), (&b"mine"[..], None));
        for (values, fault) in [
            (&[&b"a"[..], b"b"][..], "several times"),
            (&[b""], "empty"),
            (&[&[b'x'; 129]], "too long"),
            (&[b"a b"], "character"),
            (&[b"\xc3\xbc"], "character"),
        ] {
            let settled = settled(values).expect("one");
            assert!(settled.fault.is_some_and(|told| told.contains(fault)), "{fault}: {settled:?}");
            assert_eq!(settled.name.len(), 32);
        }
    }

    #[test]
    fn a_request_is_meant_by_either_name() {
        for given in ["cmpl-a-1", "a-1", "cmpl-a", "a"] {
            assert!(is_meant("cmpl-a-1", given), "{given}");
        }
        assert!(is_meant("chatcmpl-x", "x") && is_meant("cmpl-cmpl-x", "cmpl-x"));
        for given in ["1", "a-", "x", "cmp", "cmpl"] {
            assert!(!is_meant("cmpl-a-1", given), "{given}");
        }
    }
}
