//! Why a sequence does not run.

use std::time::Duration;

use crate::hold::HoldReason;
use crate::ids::{SeqId, Time};
use crate::refusal::Refusal;
use crate::scheduler::Scheduler;
use crate::sequence::{SeqStatus, Sequence};

/// What one sequence is doing, and what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// Where it is in its life.
    pub status: SeqStatus,
    /// Time since it came in.
    pub age: Duration,
    /// Time since it came in, or since it gave way the last time; zero while it runs.
    pub waiting: Duration,
    /// What it waits for; `None` if it was served when it last could be.
    pub waits_for: Option<WaitReason>,
}

/// What a sequence waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitReason {
    /// It was refused when it last asked.
    Refused(Refusal),
    /// Something that it needs is being made.
    Held(HoldReason),
    /// It is the next of its class, and no step has been planned since, or another class was served.
    NextStep,
    /// It is the next of its class, which is not asked while as many sequences run as may.
    Full {
        /// How many those are: `max_num_seqs`, or what admission was lowered to.
        limit: u32,
    },
    /// Others of its class come first.
    Behind {
        /// The first of them.
        head: SeqId,
        /// How many they are.
        place: usize,
    },
}

/// What a waiting sequence waits for, in a word: the label of a gauge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum WaitClass {
    /// Others come first.
    Queue,
    /// The pool has not enough blocks.
    Blocks,
    /// `max_num_seqs` sequences run.
    SeqLimit,
    /// The tokens of the step were spent.
    TokenBudget,
    /// `max_num_partial_prefills` prompts are computed in part.
    PartialPrefills,
    /// Its blocks are on their way to the host or back.
    Swap,
    /// Admission was lowered after preemptions.
    Thrashing,
    /// Its grammar is being compiled.
    Grammar,
    /// Its adapter is being loaded.
    Adapter,
    /// Something else that a policy of one's own asked for.
    Other,
}

impl WaitClass {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Queue,
        Self::Blocks,
        Self::SeqLimit,
        Self::TokenBudget,
        Self::PartialPrefills,
        Self::Swap,
        Self::Thrashing,
        Self::Grammar,
        Self::Adapter,
        Self::Other,
    ];

    /// Its name as a label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Blocks => "blocks",
            Self::SeqLimit => "seq_limit",
            Self::TokenBudget => "token_budget",
            Self::PartialPrefills => "partial_prefills",
            Self::Swap => "swap",
            Self::Thrashing => "thrashing",
            Self::Grammar => "grammar",
            Self::Adapter => "adapter",
            Self::Other => "other",
        }
    }
}

impl From<Refusal> for WaitClass {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoBlocks(_) => Self::Blocks,
            Refusal::SeqLimit { .. } => Self::SeqLimit,
            Refusal::TokenBudget { .. } => Self::TokenBudget,
            Refusal::PartialPrefills { .. } => Self::PartialPrefills,
            Refusal::SwapInFlight => Self::Swap,
            Refusal::Thrashing { .. } => Self::Thrashing,
            Refusal::Held(reason) => reason.into(),
            _ => Self::Other,
        }
    }
}

impl From<HoldReason> for WaitClass {
    fn from(reason: HoldReason) -> Self {
        match reason {
            HoldReason::Grammar => Self::Grammar,
            HoldReason::Adapter => Self::Adapter,
        }
    }
}

/// Of those that wait, how many were refused and why; the rest is behind somebody. Kept as sequences come and go, so
/// that nobody ever counts them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitCounts {
    by_class: [usize; WaitClass::ALL.len()],
    num_swapped: usize,
}

impl WaitCounts {
    /// Brings the count of one sequence up to date with its state.
    pub(crate) fn recount(&mut self, seq: &mut Sequence) {
        let (held, refused) = (seq.holds.first().map(WaitClass::from), seq.refusal.map(WaitClass::from));
        let class = held.or(refused).filter(|_| seq.is_queued());
        if let Some(old) = std::mem::replace(&mut seq.counted_as, class) {
            self.by_class[old as usize] -= 1;
        }
        if let Some(new) = class {
            self.by_class[new as usize] += 1;
        }
        let is_swapped = seq.status == SeqStatus::Swapped;
        let was_swapped = std::mem::replace(&mut seq.counted_as_swapped, is_swapped);
        self.num_swapped = self.num_swapped + usize::from(is_swapped) - usize::from(was_swapped);
    }

    pub(crate) fn num_swapped(&self) -> usize {
        self.num_swapped
    }

    fn of(&self, class: WaitClass) -> usize {
        self.by_class[class as usize]
    }
}

impl Scheduler {
    /// Why a sequence does not run, derived when asked; `None` for one that is not known (any more). Nothing is kept
    /// for those behind a head. O(log n).
    pub fn explain(&self, seq: SeqId, now: Time) -> Option<Explanation> {
        let seq = self.state.sequences.get(seq)?;
        let refused = seq.refusal.map(WaitReason::Refused);
        let head = self.state.waiting.head(seq.class);
        let waits_for = match head {
            _ if !seq.holds.is_empty() => seq.holds.first().map(WaitReason::Held),
            Some(head) if seq.is_queued() && head != seq.id => {
                Some(WaitReason::Behind { head, place: self.state.waiting.place(seq) })
            }
            _ if seq.is_queued() => refused.or_else(|| Some(self.unasked())),
            _ => refused,
        };
        let waiting = if seq.is_queued() { now.since(seq.waits_since) } else { Duration::ZERO };
        Some(Explanation { status: seq.status, age: now.since(seq.arrival), waiting, waits_for })
    }

    /// What the head of a class waits for that no policy has asked for.
    fn unasked(&self) -> WaitReason {
        let limit = self.state.thrash.limit().unwrap_or(u32::MAX).min(self.state.config.max_num_seqs);
        let is_full = self.state.running.len() >= limit as usize;
        if is_full { WaitReason::Full { limit } } else { WaitReason::NextStep }
    }

    /// What a waiting sequence is counted as in [`waiting_by_reason`](Self::waiting_by_reason); `None` for any other.
    pub fn wait_class(&self, seq: SeqId) -> Option<WaitClass> {
        let seq = self.state.sequences.get(seq).filter(|seq| seq.status != SeqStatus::Running)?;
        Some(seq.counted_as.unwrap_or(WaitClass::Queue))
    }

    /// How many sequences wait for what. They add up to the number of those that wait.
    pub fn waiting_by_reason(&self) -> [(WaitClass, usize); WaitClass::ALL.len()] {
        let num_refused: usize = WaitClass::ALL.iter().map(|class| self.state.refused.of(*class)).sum();
        WaitClass::ALL.map(|class| match class {
            WaitClass::Queue => (class, self.state.waiting.len() + self.state.num_held - num_refused),
            class => (class, self.state.refused.of(class)),
        })
    }
}
