//! How long a client takes nothing.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

/// The time in which a client has taken nothing of what is sent to it.
#[derive(Debug)]
pub(super) struct Stall {
    timeout: Duration,
    /// It runs from the first moment that the client has taken nothing.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, sleep: None }
    }

    /// The client has taken something.
    pub(super) fn end(&mut self) {
        self.sleep = None;
    }

    /// Ready when nothing has been taken for too long; the time begins with the first call.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timeout = self.timeout;
        self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout))).as_mut().poll(cx)
    }
}
