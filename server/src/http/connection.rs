//! What an answer knows of the connection that it goes out over.

use std::time::Instant;

use hyper::service::Service;
use hyper::{Method, Request, Version, body::Incoming};

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

/// A service whose requests know their connection.
pub(super) struct ConnectedService<S> {
    pub(super) service: S,
    pub(super) connection: Connection,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for ConnectedService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> S::Future {
        let mut connection = self.connection.clone();
        // Older clients know no chunks.
        if request.version() != Version::HTTP_11 || request.method() == Method::HEAD {
            connection.wire = None;
        }
        request.extensions_mut().insert(connection);
        self.service.call(request)
    }
}
