//! Another attempt at what may go well the next time.

use std::thread;
use std::time::Duration;

use super::client::Limits;
use super::{AnswerFault, SourceError};

/// Does it, at most `max` times. Refusals, and what no repetition mends, are told at once.
pub(super) fn retried<T>(
    limits: &Limits,
    max: u32,
    mut attempt: impl FnMut() -> Result<T, SourceError>,
) -> Result<T, SourceError> {
    let mut number = 1;
    loop {
        let error = match attempt() {
            Err(error) if number < max => error,
            outcome => return outcome,
        };
        let Some(pause) = pause_after(&error, number, limits) else { return Err(error) };
        let seconds = pause.as_secs_f32();
        tracing::warn!(target: "quire::models", "attempt {number} of {max}, the next in {seconds} s: {error}");
        thread::sleep(pause);
        number += 1;
    }
}

/// How long to wait after an error; none where waiting is no use.
fn pause_after(error: &SourceError, number: u32, limits: &Limits) -> Option<Duration> {
    let doubled = limits.pause * 2u32.saturating_pow(number - 1);
    match error {
        SourceError::HubFailed { .. }
        | SourceError::HubSilent { .. }
        | SourceError::HubAnswer { fault: AnswerFault::Range { .. }, .. }
        | SourceError::WrongHash { .. } => Some(Duration::ZERO),
        SourceError::HubBusy { retry_after, .. } | SourceError::HubFault { retry_after, .. } => {
            Some(retry_after.unwrap_or(doubled)).filter(|pause| *pause <= limits.max_pause)
        }
        _ => None,
    }
}
