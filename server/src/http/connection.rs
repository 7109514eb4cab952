//! What an answer knows of the connection that it goes out over.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::service::Service;
use hyper::{Method, Request, Response, Version, body::Incoming};

use super::lent_body::{Lender, LentBody};
use super::wire::{Sent, Wire};
use super::write_times::WriteClock;

/// A connection's clock, and the way past HTTP where it has one: secured connections have none. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(super) clock: WriteClock,
    pub(super) wire: Option<Wire>,
}

impl Connection {
    /// Sends a chunk of the body past HTTP, if that may be, with pieces of those moments.
    pub(crate) fn send(&self, chunk: &[u8], moments: &[Instant]) -> Sent {
        let sent = self.wire.as_ref().map_or(Sent::Not, |wire| wire.send(chunk));
        if sent != Sent::Not {
            self.clock.sent(moments);
        }
        sent
    }

    /// HTTP gets something to send, with pieces of those moments.
    pub(crate) fn hand_on(&self, moments: impl Iterator<Item = Instant>) {
        self.end();
        self.clock.handed_on(moments);
    }

    /// HTTP has all that there is for it.
    pub(crate) fn wait(&self) {
        self.wire.iter().for_each(Wire::open);
    }

    /// Nothing goes past HTTP any more.
    pub(crate) fn end(&self) {
        self.wire.iter().for_each(Wire::close);
    }
}

/// How far a connection has come. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    has_asked: AtomicBool,
    leaves_unread: AtomicBool,
}

impl Progress {
    /// Whether the head of a request has come.
    pub(super) fn has_asked(&self) -> bool {
        self.0.has_asked.load(Ordering::Relaxed)
    }

    /// Whether there is more of a body than its answer has waited for: that answer is the connection's last.
    pub(super) fn leaves_unread(&self) -> bool {
        self.0.leaves_unread.load(Ordering::Relaxed)
    }
}

/// A service whose requests know their connection, and whose answers say when they are its last.
pub(super) struct ConnectedService<S> {
    pub(super) service: S,
    pub(super) connection: Connection,
    pub(super) progress: Progress,
}

impl<S, B> Service<Request<Incoming>> for ConnectedService<S>
where
    S: Service<Request<LentBody>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Send,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.progress.0.has_asked.store(true, Ordering::Relaxed);
        let (lender, progress) = (Lender::default(), self.progress.clone());
        let expects = request.headers().contains_key(header::EXPECT);
        let mut request = request.map(|body| lender.lend(body));
        let mut connection = self.connection.clone();
        // Older clients know no chunks.
        if request.version() != Version::HTTP_11 || request.method() == Method::HEAD {
            connection.wire = None;
        }
        request.extensions_mut().insert(connection);
        let answering = self.service.call(request);
        Box::pin(async move {
            let mut response = answering.await?;
            let is_unread = match is_last(response.headers()) {
                true => lender.has_more(),
                false => !lender.pass_over(expects).await,
            };
            if is_unread {
                progress.0.leaves_unread.store(true, Ordering::Relaxed);
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}

/// Whether an answer ends its connection in any case.
fn is_last(headers: &HeaderMap) -> bool {
    headers.get(header::CONNECTION).is_some_and(|value| value == "close")
}
