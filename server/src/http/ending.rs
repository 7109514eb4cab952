//! How connections learn that the server ends, and the server that they have.

use tokio::sync::watch;

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Connections(watch::Sender<bool>);

/// While it is there, the server does not end.
#[derive(Debug)]
pub(super) struct OpenConnection(watch::Receiver<bool>);

impl Connections {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(super) fn open(&self) -> OpenConnection {
        OpenConnection(self.0.subscribe())
    }

    /// Tells all of them to end, and returns when they have.
    pub(super) async fn end(&self) {
        self.0.send_replace(true);
        self.0.closed().await;
    }
}

impl OpenConnection {
    /// Returns when the connection is to end.
    pub(super) async fn told_to_end(&mut self) {
        // A server that is no more has ended as well.
        drop(self.0.wait_for(|is_ending| *is_ending).await);
    }
}
