//! The seam for policies: what a policy sees, and what it may say.

use std::time::Duration;

use crate::builder::StepBuilder;
use crate::ids::{ClassId, SeqId, Time};
use crate::policies::standard_plan;
use crate::queue::ClassHeads;
use crate::running::Running;
use crate::sequence::{FinishReason, SequenceView};

/// A place in an order, compared field by field; the smallest comes first. Equal ranks are ordered by arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank(pub i64, pub i64);

impl From<Time> for Rank {
    /// First come, first served. Ageing is a matter of adding to the time: a class that may wait a second longer has
    /// a second added.
    fn from(time: Time) -> Self {
        Self(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX), 0)
    }
}

/// Something that has happened to a sequence; a policy may want to count it.
#[derive(Clone, Copy, Debug)]
pub struct SchedEvent<'a> {
    /// The sequence, after it has happened.
    pub seq: SequenceView<'a>,
    /// What has happened.
    pub kind: EventKind,
}

/// What may happen to a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// It was added, and queued. It may be held at once, and is then no head before it is released.
    Arrived,
    /// It was given blocks, and runs.
    Admitted,
    /// It computes so many tokens in the step just planned.
    Granted {
        /// Tokens of the grant.
        num_tokens: u32,
    },
    /// It gave way, and waits again.
    Preempted,
    /// The prefix cache was told of more of its blocks, and knows so many tokens of its beginning now.
    Cached {
        /// Tokens that the cache was told of.
        num_tokens: u32,
    },
    /// It is held no more, and queued: for the first time, or again.
    Released,
    /// It has ended.
    Finished(FinishReason),
}

/// What has to be ranked anew after an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rerank {
    /// Nothing: the usual answer.
    None,
    /// One sequence.
    Seq(SeqId),
    /// All that wait in a class. O(waiting in the class).
    Class(ClassId),
}

/// How a running sequence gives way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PreemptionMode {
    /// Its blocks are given up, and computed again later.
    Recompute,
    /// Its blocks go to the host, and come back later.
    Swap,
}

/// Decides who runs. Two methods are required; a policy that only orders needs no more.
///
/// A policy decides and cannot break anything: it acts through [`StepBuilder`] alone, which refuses what would exceed
/// a budget, lose a block or starve the oldest. Whatever a policy answers, every sequence of a finite load ends.
///
/// It is called on the scheduler's thread, never twice at a time; it needs no locks. To be deterministic it must not
/// read a clock or draw numbers of its own: the time is an argument, a seed belongs in its constructor.
///
/// A runnable example is on the first page of this crate's documentation.
pub trait SchedulerPolicy: Send {
    /// The name it is registered and logged under.
    fn name(&self) -> &str;

    /// The order, the smallest first: inside a class of waiting sequences, and among the running ones, of which the
    /// last gives way first. Asked on arrival and after a [`Rerank`]; fixed in between, so that queues cost O(log n).
    fn rank(&self, seq: &SequenceView<'_>) -> Rank;

    /// The class a sequence waits in. Override it to serve several queues in turn.
    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        let _ = seq;
        ClassId::ONE
    }

    /// The class to admit from next; `None` admits no more in this step. By default the one whose head ranks first.
    fn next_class(&mut self, heads: &ClassHeads<'_>, now: Time) -> Option<ClassId> {
        let _ = now;
        heads.first().map(|head| head.class())
    }

    /// Who gives way when blocks run out, out of those that may: they are not planned yet, they rank after the one in
    /// need, and the oldest is not among them. By default the one that ranks last.
    fn victim(&mut self, running: &Running<'_>) -> Option<SeqId> {
        running.iter().next_back().map(|seq| seq.id())
    }

    /// Something has happened. Told between steps, never in the middle of [`plan`](Self::plan).
    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        let _ = event;
        Rerank::None
    }

    /// How much later than a request others may come and be preferred to it, or served in turn with it; by default ten
    /// minutes. Of a policy that lets requests starve while it has others, and means to, it is `None`. The test bench holds a
    /// policy to it: [`check_policy`](crate::testing::check_policy).
    fn max_overtaking(&self) -> Option<Duration> {
        Some(Duration::from_secs(600))
    }

    /// The policy's own state, to be made again by [`restore`](Self::restore): with it a flight recorder can be replayed
    /// whose beginning has been overwritten. Of a policy that keeps nothing between calls it is `Some(Vec::new())`; the
    /// default, `None`, says that it cannot be saved.
    fn save(&self) -> Option<Vec<u64>> {
        None
    }

    /// Takes over what [`save`](Self::save) gave, in a policy just built; false if that is not its state. By default a
    /// policy has none.
    fn restore(&mut self, state: &[u64]) -> bool {
        state.is_empty()
    }

    /// The whole decision, for a policy that wants all of it; the default is [`standard_plan`] over the above.
    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        standard_plan(self, step);
    }
}
