//! Whether new work is taken, and how much is open.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::error::ApiError;

/// How long a server that ends waits for bodies that have begun, and are read.
const LAST_BODIES: Duration = Duration::from_millis(200);

/// The server's way from its start to its end. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lifecycle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    /// Told once, when what is open is given up.
    given_up: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_draining: bool,
    is_given_up: bool,
    num_open: usize,
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct OpenRequest(Lifecycle);

impl Lifecycle {
    /// Notes a request that begins.
    ///
    /// # Errors
    ///
    /// 503 where the server is about to end.
    pub(crate) fn open(&self) -> Result<OpenRequest, ApiError> {
        let mut state = self.0.state.lock();
        if state.is_draining {
            return Err(refuses());
        }
        state.num_open += 1;
        Ok(OpenRequest(self.clone()))
    }

    /// From now on new work is refused.
    pub(crate) fn drain(&self) {
        self.0.state.lock().is_draining = true;
        self.0.changed.notify_waiters();
    }

    /// What is still open is to end now, with [`shutting_down`].
    pub(crate) fn give_up(&self) {
        self.0.state.lock().is_given_up = true;
        self.0.given_up.notify_waiters();
    }

    /// Whether anything was given up.
    pub(crate) fn has_given_up(&self) -> bool {
        self.0.state.lock().is_given_up
    }

    /// Whether new work is refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.state.lock().is_draining
    }

    /// Returns when new work has been refused for that long.
    async fn takes_no_more(&self, patience: Duration) {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.is_draining() {
                return tokio::time::sleep(patience).await;
            }
            changed.await;
        }
    }

    /// What `reading` a body comes to, where new work is not refused meanwhile: then a client hears so soon.
    ///
    /// # Errors
    ///
    /// Those of `reading`; [`refuses`].
    pub(crate) async fn while_open<T>(
        &self,
        reading: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            biased;
            read = reading => read,
            () = self.takes_no_more(LAST_BODIES) => Err(refuses()),
        }
    }

    /// Requests that are being answered.
    pub(crate) fn num_open(&self) -> usize {
        self.0.state.lock().num_open
    }

    /// Returns when nothing is open.
    pub(crate) async fn idle(&self) {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.num_open() == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl OpenRequest {
    /// Returns when the server gives it up.
    pub(crate) fn given_up(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.0.0);
        async move {
            let told = shared.given_up.notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable();
            if !shared.state.lock().is_given_up {
                told.await;
            }
        }
    }
}

/// What a request is told that comes too late.
pub(crate) fn refuses() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
}

/// What a request is told that the server gives up at its end.
pub(crate) fn shutting_down() -> ApiError {
    let message = "the server is shutting down, and has given the request up before its end";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.state.lock().num_open -= 1;
        self.0.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_ends_takes_nothing_and_waits_for_what_is_open() {
        let lifecycle = Lifecycle::default();
        let open = lifecycle.open().expect("it takes work");
        lifecycle.drain();
        assert_eq!(lifecycle.open().expect_err("it ends").status, StatusCode::SERVICE_UNAVAILABLE);
        let idle = tokio::spawn({
            let lifecycle = lifecycle.clone();
            async move { lifecycle.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!idle.is_finished());
        drop(open);
        idle.await.expect("nothing is open");
    }
}
