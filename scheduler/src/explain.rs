//! Why a sequence does not run.

use std::time::Duration;

use crate::ids::{SeqId, Time};
use crate::refusal::Refusal;
use crate::scheduler::Scheduler;
use crate::sequence::SeqStatus;

/// What one sequence is doing, and what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// Where it is in its life.
    pub status: SeqStatus,
    /// Time since it came in.
    pub age: Duration,
    /// What it waits for; `None` if it was served when it last could be.
    pub waits_for: Option<WaitReason>,
}

/// What a sequence waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitReason {
    /// It was refused when it last asked.
    Refused(Refusal),
    /// It is the next of its class, and no step has been planned since.
    NextStep,
    /// Others of its class come first.
    Behind {
        /// The first of them.
        head: SeqId,
        /// How many they are.
        place: usize,
    },
}

impl Scheduler {
    /// Why a sequence does not run, derived when asked; `None` for one that is not known (any more). Nothing is kept
    /// for those behind a head. O(log n).
    pub fn explain(&self, seq: SeqId, now: Time) -> Option<Explanation> {
        let seq = self.state.sequences.get(seq)?;
        let refused = seq.refusal.map(WaitReason::Refused);
        let head = self.state.waiting.head(seq.class);
        let waits_for = match (seq.status, head) {
            (SeqStatus::Waiting, Some(head)) if head != seq.id => {
                Some(WaitReason::Behind { head, place: self.state.waiting.place(seq) })
            }
            (SeqStatus::Waiting, _) => refused.or(Some(WaitReason::NextStep)),
            _ => refused,
        };
        Some(Explanation { status: seq.status, age: now.since(seq.arrival), waits_for })
    }
}
