//! A policy that answers nonsense.

use std::time::Duration;

use crate::builder::StepBuilder;
use crate::ids::{ClassId, SeqId, Time};
use crate::policies::standard_plan;
use crate::policy::{PreemptionMode, Rank, Rerank, SchedEvent, SchedulerPolicy};
use crate::queue::ClassHeads;
use crate::running::Running;
use crate::sequence::SequenceView;
use crate::testing::rng::{Rng, mix};

/// Ranks, classes, victims and plans by chance, requests that make no sense among them. The scheduler must keep every
/// promise under it.
#[derive(Clone, Debug)]
pub struct ChaosPolicy {
    rng: Rng,
}

impl ChaosPolicy {
    /// The nonsense of a seed.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed) }
    }

    /// Any sequence: one that runs, one that waits, or one that does not exist.
    fn anyone(&mut self, step: &StepBuilder<'_>) -> SeqId {
        let running: Vec<_> = step.running().iter().map(|seq| seq.id()).collect();
        let heads: Vec<_> = step.heads().iter().map(|seq| seq.id()).collect();
        let all = [running, heads, vec![SeqId(self.rng.next_u64())]].concat();
        self.rng.choose(&all)
    }
}

impl SchedulerPolicy for ChaosPolicy {
    fn name(&self) -> &str {
        "chaos"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        Rank(mix(seq.id().0 + seq.served_tokens()) as i64, 0)
    }

    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        ClassId(seq.tenant().0)
    }

    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: Time) -> Option<ClassId> {
        let all: Vec<_> =
            heads.iter().map(|head| head.class()).chain([ClassId(self.rng.next_u64())]).collect();
        Some(self.rng.choose(&all))
    }

    fn victim(&mut self, running: &Running<'_>) -> Option<SeqId> {
        let all: Vec<_> = running.iter().map(|seq| seq.id()).chain([SeqId(self.rng.next_u64())]).collect();
        Some(self.rng.choose(&all))
    }

    fn max_overtaking(&self) -> Option<Duration> {
        None
    }

    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        match self.rng.range(0..3) {
            0 => Rerank::Seq(event.seq.id()),
            1 => Rerank::Class(event.seq.class()),
            _ => Rerank::None,
        }
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        if self.rng.one_in(3) {
            return standard_plan(self, step);
        }
        for _ in 0..self.rng.range(0..12) {
            let seq = self.anyone(step);
            let mode = self.rng.choose(&[PreemptionMode::Recompute, PreemptionMode::Swap]);
            let _ = match self.rng.range(0..4) {
                0 => step.admit(seq).err(),
                1 => step.preempt(seq, mode).err(),
                2 => step.swap_in(seq).err(),
                _ => step.grant(seq, self.rng.range(0..20)).err(),
            };
        }
    }
}
