//! How long the host waited for the device of late.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How many waits are remembered.
const NUM_WAITS: usize = 8;

/// From here on a wait is long: being woken, some 100 µs, is little beside it, and runs beside the next step.
const LONG: Duration = Duration::from_millis(2);

/// The last waits for a device, by which the next is guessed.
#[derive(Default)]
pub(crate) struct Pace {
    /// In nanoseconds.
    waits: [AtomicU64; NUM_WAITS],
    num_noted: AtomicUsize,
}

impl Pace {
    /// Remembers a wait in place of the oldest.
    pub(crate) fn note(&self, waited: Duration) {
        let slot = self.num_noted.fetch_add(1, Ordering::Relaxed) % NUM_WAITS;
        self.waits[slot].store(waited.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether all of the last waits were long.
    pub(crate) fn is_slow(&self) -> bool {
        self.waits.iter().all(|wait| wait.load(Ordering::Relaxed) >= LONG.as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_short_wait_among_the_last_makes_it_quick() {
        let pace = Pace::default();
        (1..NUM_WAITS).for_each(|_| pace.note(LONG));
        assert!(!pace.is_slow(), "not all slots are known");
        pace.note(LONG);
        assert!(pace.is_slow());
        pace.note(LONG / 2);
        assert!(!pace.is_slow());
        (1..NUM_WAITS).for_each(|_| pace.note(LONG));
        assert!(!pace.is_slow(), "the short one is among the last eight");
        pace.note(LONG);
        assert!(pace.is_slow());
    }
}
