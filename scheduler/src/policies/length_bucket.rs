//! Prompts of like length together.

use std::time::Duration;

use crate::ids::{ClassId, Time};
use crate::policy::{Rank, SchedulerPolicy};
use crate::queue::ClassHeads;
use crate::sequence::SequenceView;

/// Groups traffic by length: prompts of 2^k to 2^(k+1) - 1 tokens wait in one bucket, and a bucket is served for as
/// long as somebody waits there, so that steps are made of prompts of like length. It ages: the bucket changes as soon
/// as its head came `ageing` later than the oldest of all heads.
///
/// Wait bound: nobody who came later than `ageing` after a request starts before it. So it waits at most as long as a
/// first come, first served queue needs for what waits when it comes and what comes within `ageing`.
#[derive(Clone, Copy, Debug)]
pub struct LengthBucket {
    ageing: Duration,
    current: Option<ClassId>,
}

impl LengthBucket {
    /// The most that a request may be overtaken by: ten seconds.
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(10);

    /// With another ageing.
    pub fn new(ageing: Duration) -> Self {
        Self { ageing, current: None }
    }
}

impl Default for LengthBucket {
    fn default() -> Self {
        Self::new(Self::DEFAULT_AGEING)
    }
}

impl SchedulerPolicy for LengthBucket {
    fn name(&self) -> &str {
        "length-bucket"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        ClassId(u64::from(u32::BITS - seq.num_prompt_tokens().leading_zeros()))
    }

    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: Time) -> Option<ClassId> {
        let oldest = heads.first()?;
        let goes_on = |class: &ClassId| {
            heads.of(*class).is_some_and(|head| head.arrival() <= oldest.arrival() + self.ageing)
        };
        self.current = self.current.filter(goes_on).or(Some(oldest.class()));
        self.current
    }

    fn max_overtaking(&self) -> Option<Duration> {
        Some(self.ageing)
    }

    fn save(&self) -> Option<Vec<u64>> {
        Some(self.current.iter().map(|class| class.0).collect())
    }

    fn restore(&mut self, state: &[u64]) -> bool {
        self.current = state.first().map(|class| ClassId(*class));
        state.len() <= 1
    }
}
