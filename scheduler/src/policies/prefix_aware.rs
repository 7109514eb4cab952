//! Who begins with what the cache has.

use std::time::Duration;

use quire_kvcache::Saved;

use crate::ids::{ClassId, Time};
use crate::policies::ageing::delay;
use crate::policies::class_order::ClassOrder;
use crate::policy::{EventKind, Rank, Rerank, SchedEvent, SchedulerPolicy};
use crate::queue::ClassHeads;
use crate::sequence::SequenceView;

/// The longest cached beginning first: a prompt runs while what it shares with others is still in the cache. Prompts
/// that begin with the same block wait in one queue, in the order of arrival, and of the queues' heads the one goes
/// first whose beginning is cached furthest. It ages: a head of which `c` tokens are cached is ranked as if it had come
/// `ageing × 256 / (c + 256)` later.
///
/// Wait bound: nobody who came later than `ageing` after a request starts before it. So it waits at most as long as a
/// first come, first served queue needs for what waits when it comes and what comes within `ageing`.
///
/// Scores are looked up when a queue gets a head and when it comes to the front, not in between: a queue whose
/// beginning was evicted is found out when its turn would come.
#[derive(Clone, Debug)]
pub struct PrefixAware {
    ageing: Duration,
    order: ClassOrder,
}

/// The number of cached tokens at which half of the delay is saved.
const HALF: u64 = 256;

/// Scores that a choice may put right before it takes what is first.
const MAX_CORRECTIONS: usize = 16;

impl PrefixAware {
    /// The most that a request may be overtaken by: ten seconds.
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(10);

    /// With another ageing.
    pub fn new(ageing: Duration) -> Self {
        Self { ageing, order: ClassOrder::default() }
    }

    fn score(&self, head: &SequenceView<'_>) -> u64 {
        let saved = delay(self.ageing, u64::from(head.num_cached_tokens_now()), HALF);
        (head.arrival() + self.ageing.saturating_sub(saved)).as_nanos()
    }

    /// A sequence waits: it is the first of its queue if nobody else does, or if it had started or was queued before.
    fn note_waiting(&mut self, seq: &SequenceView<'_>, may_be_head: bool) {
        let known = self.order.get(seq.class());
        if known.is_none() || may_be_head {
            let score = self.score(seq);
            self.order.set(seq.class(), known.map_or(score, |known| known.min(score)));
        }
    }

    /// More of a beginning is cached. What that means for a queue's head is looked up if it may be enough.
    fn note_cached(&mut self, class: ClassId) {
        if let Some(score) = self.order.get(class) {
            let ageing = u64::try_from(self.ageing.as_nanos()).unwrap_or(u64::MAX);
            self.order.set(class, score.saturating_sub(ageing));
        }
    }
}

impl Default for PrefixAware {
    fn default() -> Self {
        Self::new(Self::DEFAULT_AGEING)
    }
}

impl SchedulerPolicy for PrefixAware {
    fn name(&self) -> &str {
        "prefix-aware"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        seq.prefix_group().unwrap_or(ClassId::ONE)
    }

    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: Time) -> Option<ClassId> {
        for _ in 0..MAX_CORRECTIONS {
            let Some((score, class)) = self.order.first() else { break };
            let Some(head) = heads.of(class) else {
                self.order.remove(class);
                continue;
            };
            let right = self.score(&head);
            if right <= score {
                return Some(class);
            }
            self.order.set(class, right);
        }
        heads.first().map(|head| head.class())
    }

    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        match event.kind {
            EventKind::Arrived => self.note_waiting(&event.seq, false),
            EventKind::Preempted | EventKind::Released => self.note_waiting(&event.seq, true),
            EventKind::Cached { .. } => self.note_cached(event.seq.class()),
            _ => {}
        }
        Rerank::None
    }

    fn max_overtaking(&self) -> Option<Duration> {
        Some(self.ageing)
    }

    fn save(&self) -> Option<Vec<u64>> {
        let mut state = Vec::new();
        self.order.save(&mut state);
        Some(state)
    }

    fn restore(&mut self, mut state: &[u64]) -> bool {
        let order = ClassOrder::restore(&mut state);
        order.map(|order| self.order = order).is_some() && state.is_empty()
    }
}
