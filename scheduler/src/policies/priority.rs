//! By priority.

use std::time::Duration;

use crate::builder::StepBuilder;
use crate::ids::SeqId;
use crate::policies::ageing::{delay, delayed};
use crate::policies::standard_plan;
use crate::policy::{Rank, SchedulerPolicy};
use crate::refusal::Refusal;
use crate::sequence::SequenceView;

/// Lower priorities first, ties by arrival. A sequence that finds no room, neither in the pool nor among
/// `max_num_seqs`, takes that of running ones whose priority is worse: the worst first, of those the one that came
/// last, never the oldest.
///
/// It ages: a priority is a head start in time, `ageing / 2 × p / (8 + |p|)` for priority `p`, and ranks are arrivals
/// with head starts taken off. The head start of 0 over 1 is an 18th of `ageing`, over 10 a 4th.
///
/// Wait bound: nobody who came later than `ageing` after a request starts before it. So it waits at most as long as a
/// first come, first served queue needs for what waits when it comes and what comes within `ageing`. With
/// [`strict`](Self::strict) there is no bound: whoever is worst waits while better ones come.
#[derive(Clone, Copy, Debug)]
pub struct Priority {
    ageing: Option<Duration>,
}

/// The priority at which half of the head start is reached.
const HALF: u64 = 8;

impl Priority {
    /// The most that a request may be overtaken by: two minutes.
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(120);

    /// With another ageing.
    pub fn new(ageing: Duration) -> Self {
        Self { ageing: Some(ageing) }
    }

    /// Without ageing: the worst priority may wait for ever.
    pub fn strict() -> Self {
        Self { ageing: None }
    }

    /// Makes room for the first of the queue, as far as there are running sequences of worse priority.
    fn displace(&self, step: &mut StepBuilder<'_>) {
        while let Some(head) = step.heads().first().map(|head| head.id()) {
            let mut has_displaced = false;
            while let Err(refusal) = step.check_admit(head) {
                let Some(victim) = worst(step, head).filter(|_| can_help(step, head, refusal)) else {
                    return;
                };
                if step.give_way(victim).is_err() {
                    return;
                }
                has_displaced = true;
            }
            if !has_displaced || step.admit(head).is_err() {
                return;
            }
        }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::new(Self::DEFAULT_AGEING)
    }
}

impl SchedulerPolicy for Priority {
    fn name(&self) -> &str {
        "priority"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        let priority = seq.priority();
        let Some(ageing) = self.ageing else {
            return Rank(i64::from(priority), Rank::from(seq.arrival()).0);
        };
        let (half, amount) = (ageing / 2, u64::from(priority.unsigned_abs()));
        let from_middle = delay(half, amount, HALF);
        let behind = if priority < 0 { half - from_middle } else { half + from_middle };
        Rank(delayed(seq.arrival(), behind).0, i64::from(priority))
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        self.displace(step);
        standard_plan(self, step);
    }

    fn max_overtaking(&self) -> Option<Duration> {
        self.ageing
    }

    fn save(&self) -> Option<Vec<u64>> {
        Some(Vec::new())
    }
}

/// The running sequence to give way first: of the worst priority, behind the head's, the one that came last.
fn worst(step: &StepBuilder<'_>, head: SeqId) -> Option<SeqId> {
    let priority = step.seq(head)?.priority();
    let victims = step.victims_for(head);
    let worse = victims.iter().filter(|victim| victim.priority() > priority);
    worse.max_by_key(|victim| (victim.priority(), victim.arrival(), victim.id())).map(|victim| victim.id())
}

/// Whether the worse ones together hold what is missing; else nobody is disturbed.
fn can_help(step: &StepBuilder<'_>, head: SeqId, refusal: Refusal) -> bool {
    let Some(priority) = step.seq(head).map(|head| head.priority()) else { return false };
    match refusal {
        Refusal::SeqLimit { .. } => true,
        Refusal::NoBlocks(short) if short.need > short.available + short.retiring => {
            let victims = step.victims_for(head);
            let worse = victims.iter().filter(|victim| victim.priority() > priority);
            let held: u32 = worse.map(|victim| victim.num_blocks()).sum();
            short.need <= short.available + short.retiring + held
        }
        _ => false,
    }
}
