//! Short prompts first.

use std::time::Duration;

use crate::policies::ageing::{delay, delayed};
use crate::policy::{Rank, SchedulerPolicy};
use crate::sequence::SequenceView;

/// Short prompts first, which keeps the mean wait low. It ages: a prompt of `n` tokens is ranked as if it had come
/// `ageing × n / (n + 1024)` later.
///
/// Wait bound: nobody who came later than `ageing` after a request starts before it. So it waits at most as long as a
/// first come, first served queue needs for what waits when it comes and what comes within `ageing`.
#[derive(Clone, Copy, Debug)]
pub struct ShortestFirst {
    ageing: Duration,
}

/// The length at which half of the delay is reached.
const HALF: u64 = 1024;

impl ShortestFirst {
    /// The most that a request may be overtaken by: half a minute.
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(30);

    /// With another ageing.
    pub fn new(ageing: Duration) -> Self {
        Self { ageing }
    }
}

impl Default for ShortestFirst {
    fn default() -> Self {
        Self::new(Self::DEFAULT_AGEING)
    }
}

impl SchedulerPolicy for ShortestFirst {
    fn name(&self) -> &str {
        "shortest-first"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        delayed(seq.arrival(), delay(self.ageing, u64::from(seq.num_prompt_tokens()), HALF))
    }

    fn max_overtaking(&self) -> Option<Duration> {
        Some(self.ageing)
    }

    fn save(&self) -> Option<Vec<u64>> {
        Some(Vec::new())
    }
}
