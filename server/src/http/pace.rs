//! How fast requests end, to tell those that find no room when to come again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quire_engine::EngineStats;

/// What is looked back at.
const WINDOW: Duration = Duration::from_secs(20);

/// The longest wait that is told.
const MAX_WAIT_S: u64 = 60;

/// Ends of requests over the last seconds.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<VecDeque<(Instant, u64)>>);

impl Pace {
    /// Notes the counters, every second or so.
    pub(crate) fn note(&self, stats: &EngineStats, now: Instant) {
        let mut looks = self.0.lock();
        looks.push_back((now, stats.num_finished.values().sum()));
        while looks.front().is_some_and(|(then, _)| now.saturating_duration_since(*then) > WINDOW) {
            looks.pop_front();
        }
    }

    /// Seconds after which a place in the queue should be free: at least 1.
    pub(crate) fn retry_after_s(&self) -> u64 {
        let looks = self.0.lock();
        let (Some((begin, before)), Some((end, after))) = (looks.front(), looks.back()) else { return 1 };
        let seconds = end.saturating_duration_since(*begin).as_secs_f64();
        match after - before {
            0 if seconds < 1.0 => 1,
            // Nothing has ended for as long as was looked back.
            0 => (2.0 * seconds).ceil() as u64,
            ended => (seconds / ended as f64).ceil() as u64,
        }
        .clamp(1, MAX_WAIT_S)
    }
}

#[cfg(test)]
mod tests {
    use quire_engine::FinishReason;

    use super::*;

    #[test]
    fn the_wait_follows_the_rate() {
        let start = Instant::now();
        let looks = |ended: &[u64]| {
            let pace = Pace::default();
            for (second, ended) in (0..).zip(ended) {
                let num_finished = [(FinishReason::Stop, *ended)].into();
                let stats = EngineStats { num_finished, ..EngineStats::default() };
                pace.note(&stats, start + Duration::from_secs(second));
            }
            pace.retry_after_s()
        };
        assert_eq!(looks(&[]), 1);
        assert_eq!(looks(&[0, 50, 100]), 1);
        assert_eq!(looks(&[7, 7, 7, 7, 8]), 4);
        assert_eq!(looks(&[7, 7, 7, 7]), 6);
    }
}
