//! First come, first served.

use std::time::Duration;

use crate::policy::{Rank, SchedulerPolicy};
use crate::sequence::SequenceView;

/// First come, first served: the order of arrival, for admission and against preemption.
///
/// Nobody is overtaken, so that a request waits at most until all that came before it have ended: with `W` tokens to
/// compute ahead of it, at least one a step, at most `W` steps. In practice it starts when its room has come free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl SchedulerPolicy for Fcfs {
    fn name(&self) -> &str {
        "fcfs"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn max_overtaking(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn save(&self) -> Option<Vec<u64>> {
        Some(Vec::new())
    }
}
