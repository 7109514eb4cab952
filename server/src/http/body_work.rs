//! What is done with large bodies: beside the threads that answer all connections, a few bodies at a time.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use axum::http::StatusCode;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// From here on a body is large: smaller ones are read within a millisecond.
const LARGE_BYTES: usize = 64 << 10;

/// Most places: a body of many small values takes up to a hundred times its bytes.
const MAX_PLACES: usize = 4;

/// Places for work on large bodies, with a thread for each: half of the processors are left to others. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct BodyWork {
    places: Arc<Semaphore>,
    threads: Arc<Threads>,
}

/// The place of a large body, from its text to the last value that is taken of it. Values take many times the memory of their
/// text: so no body waits between the two, however many come.
#[derive(Clone, Debug)]
pub(crate) struct BodyPlace(
    #[expect(dead_code, reason = "held until it is dropped")] Arc<OwnedSemaphorePermit>,
);

/// Threads of their own: what an allocator keeps for a thread is not kept by hundreds.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        // Nobody waits for what they still do.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl BodyWork {
    /// As many places as this machine has room for.
    ///
    /// # Errors
    ///
    /// Where the system refuses what threads need.
    pub(crate) fn start() -> io::Result<Self> {
        let num_processors = available_parallelism().map_or(1, NonZero::get);
        Self::with_places((num_processors / 2).clamp(1, MAX_PLACES))
    }

    fn with_places(num_places: usize) -> io::Result<Self> {
        let mut threads = Builder::new_current_thread();
        let threads = threads.max_blocking_threads(num_places).thread_name("quire-bodies").build()?;
        Ok(Self { places: Arc::new(Semaphore::new(num_places)), threads: Arc::new(Threads(Some(threads))) })
    }

    /// The place of a body of so many bytes, once one is free; small ones need none.
    pub(crate) async fn place(&self, num_bytes: usize) -> Option<BodyPlace> {
        if num_bytes < LARGE_BYTES {
            return None;
        }
        let place = Arc::clone(&self.places).acquire_owned().await.expect("nobody closes the semaphore");
        Some(BodyPlace(Arc::new(place)))
    }

    /// Does what is to be done with a body that has that place: a large one is dealt with elsewhere, and keeps its place
    /// until that is over, whether anybody waits for it or not.
    ///
    /// # Errors
    ///
    /// Those of `run`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        place: Option<BodyPlace>,
        run: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Some(place) = place else { return run() };
        let work = move || {
            let outcome = run();
            drop(place);
            outcome
        };
        let failed = |error| {
            let message = format!("internal error: reading the body: {error}");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        };
        let threads = self.threads.0.as_ref().expect("only drop takes it");
        threads.spawn_blocking(work).await.unwrap_or_else(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn work() -> BodyWork {
        BodyWork::with_places(1).expect("threads")
    }

    async fn no_place(work: &BodyWork) -> bool {
        tokio::time::timeout(Duration::from_millis(10), work.place(LARGE_BYTES)).await.is_err()
    }

    #[tokio::test]
    async fn large_bodies_are_read_elsewhere_and_small_ones_here() {
        let work = work();
        let here = thread::current().id();
        for (num_bytes, is_here) in [(0, true), (LARGE_BYTES - 1, true), (LARGE_BYTES, false)] {
            let place = work.place(num_bytes).await;
            let done_by = work.run(place, || Ok(thread::current().id())).await;
            assert_eq!(done_by.map(|thread| thread == here), Ok(is_here), "{num_bytes}");
        }
    }

    #[tokio::test]
    async fn a_body_keeps_its_place_until_all_is_taken_of_it() {
        let work = work();
        let place = work.place(LARGE_BYTES).await;
        assert_eq!(work.run(place.clone(), || Ok("parsed")).await, Ok("parsed"));
        assert!(no_place(&work).await, "its values are there");
        assert_eq!(work.run(place, || Ok("taken")).await, Ok("taken"));
        assert!(!no_place(&work).await);
    }

    #[tokio::test]
    async fn what_has_begun_keeps_its_place_when_its_caller_goes() {
        let work = work();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let running = work.run(work.place(LARGE_BYTES).await, move || Ok(wait.recv().is_ok()));
        assert!(tokio::time::timeout(Duration::from_millis(10), running).await.is_err(), "it waits");
        assert!(no_place(&work).await);
        drop(go);
        assert!(work.place(LARGE_BYTES).await.is_some());
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_gives_the_place_back() {
        let work = work();
        let failed = work.run(work.place(LARGE_BYTES).await, || -> Result<(), _> { panic!("a bug") }).await;
        assert_eq!(failed.map_err(|error| error.status), Err(StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(work.run(work.place(LARGE_BYTES).await, || Ok(2)).await, Ok(2));
    }
}
