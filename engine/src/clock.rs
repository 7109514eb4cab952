//! The engine's time.

use std::time::Instant;

use quire_scheduler::Time;

/// Measures from the engine's start. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// A moment as the system's clock has it.
    pub(crate) fn instant(self, time: Time) -> Instant {
        self.start + time.since(Time::ZERO)
    }
}

/// The time between two moments, in milliseconds.
pub(crate) fn ms_between(earlier: Time, later: Time) -> f64 {
    later.since(earlier).as_secs_f64() * 1e3
}
