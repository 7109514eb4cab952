//! What is done with large bodies: beside the threads that answer all connections, a few bodies at a time.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use super::error::ApiError;

/// From here on a body is large: smaller ones are read within a millisecond.
const LARGE_BYTES: usize = 64 << 10;

/// Places for work on large bodies: half of the processors are left to others. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct BodyWork(Arc<Semaphore>);

impl Default for BodyWork {
    fn default() -> Self {
        let num_places = available_parallelism().map_or(1, NonZero::get) / 2;
        Self(Arc::new(Semaphore::new(num_places.max(1))))
    }
}

impl BodyWork {
    /// Does what is to be done with a body of so many bytes. Of large ones some wait, and what nobody waits for any more is not
    /// begun.
    ///
    /// # Errors
    ///
    /// Those of `run`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        num_bytes: usize,
        run: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if num_bytes < LARGE_BYTES {
            return run();
        }
        let place = Arc::clone(&self.0).acquire_owned().await.expect("nobody closes the semaphore");
        let work = move || {
            let outcome = run();
            drop(place);
            outcome
        };
        let failed = |error| {
            let message = format!("internal error: reading the body: {error}");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn large_bodies_are_read_elsewhere_and_small_ones_here() {
        let work = BodyWork::default();
        let here = thread::current().id();
        for (num_bytes, is_here) in [(0, true), (LARGE_BYTES - 1, true), (LARGE_BYTES, false)] {
            let done_by = work.run(num_bytes, || Ok(thread::current().id())).await;
            assert_eq!(done_by.map(|thread| thread == here), Ok(is_here), "{num_bytes}");
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_begun() {
        let work = BodyWork(Arc::new(Semaphore::new(1)));
        let taken = Arc::clone(&work.0).acquire_owned().await.expect("open");
        let waiting = work.run(LARGE_BYTES, || -> Result<(), _> { panic!("its caller has gone") });
        let waited = tokio::time::timeout(std::time::Duration::from_millis(10), waiting).await;
        assert!(waited.is_err(), "{waited:?}");
        drop(taken);
        assert_eq!(work.run(LARGE_BYTES, || Ok(1)).await, Ok(1));
        let failed = work.run(LARGE_BYTES, || -> Result<(), _> { panic!("a bug") }).await;
        assert_eq!(failed.map_err(|error| error.status), Err(StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(work.run(LARGE_BYTES, || Ok(2)).await, Ok(2));
    }
}
