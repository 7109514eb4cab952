//! The header `Host`.

use axum::extract::Request;
use axum::http::{StatusCode, Version, header};

use super::error::ApiError;

/// RFC 9112, 3.2: one `Host`, that is one, in every request of HTTP/1.1; older clients may leave it out.
///
/// # Errors
///
/// 400 for any other.
pub(super) fn check(request: &Request) -> Result<(), ApiError> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let refuse = |message: String| {
        Err(ApiError { param: Some("Host".to_owned()), ..ApiError::new(StatusCode::BAD_REQUEST, message) })
    };
    match (given.next(), given.next()) {
        (None, _) if request.version() < Version::HTTP_11 => Ok(()),
        (None, _) => refuse("the header Host is missing: every request of HTTP/1.1 has it".to_owned()),
        (Some(_), Some(_)) => refuse("the header Host is given several times: expected one".to_owned()),
        (Some(host), None) if is_host(host.as_bytes()) => Ok(()),
        (Some(host), None) => {
            let host = String::from_utf8_lossy(host.as_bytes());
            refuse(format!("the header Host is {host:?}: expected HOST or HOST:PORT"))
        }
    }
}

/// `uri-host [":" port]` of RFC 3986, 3.2. The name may be empty.
fn is_host(text: &[u8]) -> bool {
    let (is_name, rest) = match text {
        [b'[', inner @ ..] => {
            let Some(end) = inner.iter().position(|&byte| byte == b']') else { return false };
            (end > 0 && inner[..end].iter().all(|&byte| is_of_address(byte)), &inner[end + 1..])
        }
        _ => {
            let end = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
            (text[..end].iter().all(|&byte| is_of_name(byte)), &text[end..])
        }
    };
    let is_port = match rest {
        [] => true,
        [b':', port @ ..] => port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_name && is_port
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte)
}

/// That of IPv6, or of what may come after it.
fn is_of_address(byte: u8) -> bool {
    byte == b':' || is_of_name(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_hosts() {
        for host in
            ["", "x", "localhost:8000", "a-b_c.example", "127.0.0.1", "[::1]:80", "[fe80::1%25eth0]", "x:"]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in
            ["a b", "a/b", "a b/c", "x:y", "::1", "[::1", "[]", "[::1]x", "user@x", "x:80:80", "ü", "\t"]
        {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
