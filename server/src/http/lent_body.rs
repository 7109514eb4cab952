//! Bodies of requests that were answered before they were read to their end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

/// What of a body is passed over, so that its connection can be used again.
const MAX_PASSED_OVER_BYTES: u64 = 1 << 20;

/// How long an answer waits for that.
const PASSING_TIME: Duration = Duration::from_millis(100);

/// A body that comes back where its reader drops it before its end: HTTP closes the connection of one that is dropped.
#[derive(Debug)]
pub(super) struct LentBody {
    body: Option<Incoming>,
    is_asked_for: bool,
    lender: Lender,
}

/// Where a body comes back to.
#[derive(Clone, Debug, Default)]
pub(super) struct Lender(Arc<Mutex<Option<Returned>>>);

#[derive(Debug)]
struct Returned {
    body: Incoming,
    is_asked_for: bool,
}

impl Lender {
    pub(super) fn lend(&self, body: Incoming) -> LentBody {
        LentBody { body: Some(body), is_asked_for: false, lender: self.clone() }
    }

    /// Whether a body has come back.
    pub(super) fn has_more(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Passes over what nobody has read, where that is little and comes soon. False where there is more. A client that waits
    /// to be told to go on (`Expect`) sends nothing, and is not told so for nothing.
    pub(super) async fn pass_over(&self, expects: bool) -> bool {
        let Some(Returned { mut body, is_asked_for }) = self.0.lock().take() else { return true };
        if body.size_hint().lower() > MAX_PASSED_OVER_BYTES || expects && !is_asked_for {
            return false;
        }
        let to_end = async {
            let mut num_bytes = 0;
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return false };
                num_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                if num_bytes > MAX_PASSED_OVER_BYTES {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(PASSING_TIME, to_end).await.unwrap_or(false)
    }
}

impl Body for LentBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_asked_for = true;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        let is_asked_for = self.is_asked_for;
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.lender.0.lock() = Some(Returned { body, is_asked_for });
        }
    }
}
