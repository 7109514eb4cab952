//! Bodies for what HTTP answers by itself, to heads that it cannot read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{ApiError, ErrorForm};
use super::listener::Listening;

/// A stream on which such an answer goes out with an error as all others have it.
pub(super) struct ExplainingStream<S> {
    pub(super) stream: S,
    pub(super) form: ErrorForm,
    pub(super) answer: Option<Explained>,
}

/// An answer that goes out in place of one of HTTP's.
pub(super) struct Explained {
    text: Vec<u8>,
    num_sent: usize,
    /// Bytes of the answer that HTTP takes for sent then.
    num_bytes: usize,
}

impl Explained {
    /// What is to go out in place of `bytes`, if those are an answer of HTTP's own: it has no body, and every error of a route
    /// has one. No body begins like a head.
    fn of(bytes: &[u8], form: ErrorForm) -> Option<Self> {
        const EMPTY: &str = "content-length: 0\r\n";
        let version_end = "HTTP/1.1 ".len();
        if !bytes.starts_with(b"HTTP/1.")
            || bytes.get(version_end) != Some(&b'4')
            || !bytes.ends_with(b"\r\n\r\n")
        {
            return None;
        }
        let head = std::str::from_utf8(bytes).ok()?;
        let message = match head.get(version_end..version_end + 3)? {
            "400" => "the request is none of HTTP/1.1: its first line or a header is malformed",
            "414" => "the path and query of the request are too long: expected at most 65534 bytes",
            "431" => "the head of the request is too large: expected at most 100 headers, and 400 KiB",
            _ => return None,
        };
        let status = StatusCode::from_bytes(&bytes[version_end..version_end + 3]).ok()?;
        let (before, after) = head.split_once(EMPTY)?;
        let body = ApiError::new(status, message).to_json(form).to_string();
        let length = body.len();
        let text =
            format!("{before}content-type: application/json\r\ncontent-length: {length}\r\n{after}{body}");
        Some(Self { text: text.into_bytes(), num_sent: 0, num_bytes: bytes.len() })
    }
}

/// What is said to a client whose head has come to nothing, where HTTP would close the connection without a word. `head` is
/// what came of it: a client that has sent nothing has asked for nothing.
pub(super) fn last_word(error: &hyper::Error, head: &[u8], listening: &Listening) -> Option<Vec<u8>> {
    let error = if error.is_parse_version_h2() {
        let message = "HTTP/2 is not spoken here: expected HTTP/1.1";
        ApiError::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, message)
    } else if error.is_timeout() && !head.trim_ascii().is_empty() {
        let message =
            format!("the head of the request has not come within {} s", listening.head_timeout.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    } else {
        return None;
    };
    let (status, body) = (error.status, error.to_json(listening.error_form).to_string());
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    Some(text.into_bytes())
}

impl<S: AsyncWrite + Unpin> ExplainingStream<S> {
    /// Sends another answer in place of `bytes`, if they are one of HTTP's own.
    fn poll_explain(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Option<io::Result<usize>>> {
        if self.answer.is_none() {
            self.answer = Explained::of(bytes, self.form);
        }
        let Some(answer) = &mut self.answer else { return Poll::Ready(None) };
        while answer.num_sent < answer.text.len() {
            let rest = &answer.text[answer.num_sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Some(Err(io::ErrorKind::WriteZero.into()))),
                Ok(num) => answer.num_sent += num,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let num_bytes = answer.num_bytes;
        self.answer = None;
        Poll::Ready(Some(Ok(num_bytes)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ExplainingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ExplainingStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match ready!(self.poll_explain(cx, bytes)) {
            Some(sent) => Poll::Ready(sent),
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let explained = match parts {
            [only] => ready!(self.poll_explain(cx, only)),
            _ => None,
        };
        match explained {
            Some(sent) => Poll::Ready(sent),
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(head: &str) -> Option<String> {
        let answer = Explained::of(head.as_bytes(), ErrorForm::Nested)?;
        assert_eq!(answer.num_bytes, head.len());
        Some(String::from_utf8(answer.text).expect("text"))
    }

    #[test]
    fn only_an_answer_of_https_own_is_changed() {
        let head = |status: &str, length: usize| {
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\ndate: x\r\n\r\n")
        };
        for status in ["400 Bad Request", "414 URI Too Long", "431 Request Header Fields Too Large"] {
            let text = explained(&head(status, 0)).expect(status);
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\nconnection: close\r\n")), "{head}");
            let length = format!("\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
            assert!(head.contains(&length) && head.ends_with("date: x"), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(body["error"]["type"], "BadRequestError");
        }
        let own = head("400 Bad Request", 20);
        for other in
            [&head("200 OK", 0), &head("401 Unauthorized", 0), &own, "HTTP/1.1 400", "data: 4\n\n", ""]
        {
            assert_eq!(explained(other), None, "{other}");
        }
    }
}
