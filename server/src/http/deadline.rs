//! When an answer must have ended.

use std::time::{Duration, Instant};

use axum::http::StatusCode;

use super::caller::Caller;
use super::error::ApiError;

/// What a client wrote in `X-Request-Timeout`, from the moment its request was read; or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    /// The one of a request that was read at `now`.
    ///
    /// # Errors
    ///
    /// As [`Caller::timeout`].
    pub(crate) fn of(caller: &Caller, now: Instant) -> Result<Self, ApiError> {
        let timeout = caller.timeout()?;
        Ok(Self(timeout.and_then(|timeout| Some((now.checked_add(timeout)?, timeout)))))
    }

    /// The moment itself.
    pub(crate) fn moment(self) -> Option<Instant> {
        self.0.map(|(moment, _)| moment)
    }

    /// What is said when it has passed.
    pub(crate) fn too_late(self) -> ApiError {
        let seconds = self.0.map_or(0.0, |(_, timeout)| timeout.as_secs_f64());
        let message = format!("the request has taken longer than the {seconds} s of its X-Request-Timeout");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// Waits for `outcome`, to the deadline at most.
    ///
    /// # Errors
    ///
    /// Those of `outcome`; [`too_late`](Self::too_late).
    pub(crate) async fn within<T, E: Into<ApiError>>(
        self,
        outcome: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        match self.moment() {
            None => outcome.await.map_err(Into::into),
            Some(moment) => match tokio::time::timeout_at(moment.into(), outcome).await {
                Ok(outcome) => outcome.map_err(Into::into),
                Err(_) => Err(self.too_late()),
            },
        }
    }
}
