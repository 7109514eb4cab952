//! How long the host waited for the device of late.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How many waits are remembered.
const NUM_WAITS: usize = 8;

/// From here on a wait is long: to be late by a nap is little beside it, and runs beside the next step.
const LONG: Duration = Duration::from_millis(2);

/// Longest sleep at the beginning: after long steps a short one may come.
const MAX_SLEEP: Duration = Duration::from_millis(4);

/// The naps that follow.
const NAPS: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(1);

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

    /// How long the next wait will be at least, where all of the last waits were long.
    pub(crate) fn expected(&self) -> Option<Duration> {
        let shortest = self.waits.iter().map(|wait| wait.load(Ordering::Relaxed)).min()?;
        let shortest = Duration::from_nanos(shortest);
        // Less than the shortest, whose last nap was too long as well: else each sleep would be longer than the one before.
        (shortest >= LONG).then(|| (shortest * 15 / 16).min(MAX_SLEEP))
    }
}

/// How long a thread sleeps that has waited so long: late by no more than a thirtieth of the wait, where that is not too short
/// for a clock.
pub(crate) fn nap_after(waited: Duration) -> Duration {
    (waited / 32).clamp(*NAPS.start(), *NAPS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_short_wait_among_the_last_makes_it_quick() {
        let pace = Pace::default();
        (1..NUM_WAITS).for_each(|_| pace.note(LONG));
        assert_eq!(pace.expected(), None, "not all slots are known");
        pace.note(LONG);
        assert_eq!(pace.expected(), Some(LONG * 15 / 16));
        pace.note(LONG / 2);
        assert_eq!(pace.expected(), None);
        (1..NUM_WAITS).for_each(|_| pace.note(LONG));
        assert_eq!(pace.expected(), None, "the short one is among the last eight");
        pace.note(2 * LONG);
        assert_eq!(pace.expected(), Some(LONG * 15 / 16), "the shortest counts");
    }

    #[test]
    fn sleeps_do_not_grow_by_their_own_lateness() {
        let (pace, step) = (Pace::default(), Duration::from_micros(3500));
        (0..NUM_WAITS).for_each(|_| pace.note(2 * step));
        assert_eq!(pace.expected(), Some(MAX_SLEEP));
        for _ in 0..100 {
            let mut waited = pace.expected().unwrap_or_default();
            while waited < step {
                waited += nap_after(waited) + Duration::from_micros(60);
            }
            pace.note(waited);
        }
        let expected = pace.expected().expect("waits are long");
        assert!(expected < step, "{expected:?}");
    }

    #[test]
    fn naps_are_short_beside_the_wait() {
        let nap = |ms| nap_after(Duration::from_millis(ms));
        assert_eq!([nap(0), nap(8), nap(1000)], [50, 250, 1000].map(Duration::from_micros));
    }
}
