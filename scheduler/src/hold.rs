//! Sequences that are kept from running, since something that they need is still being made elsewhere.

use std::fmt;

use quire_kvcache::Saved;

use crate::error::HoldError;
use crate::ids::SeqId;
use crate::policy::EventKind;
use crate::scheduler::Scheduler;
use crate::state::State;

/// What a held sequence waits for. Each is made outside of the scheduler, by whoever releases the sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum HoldReason {
    /// The grammar of its output is being compiled.
    Grammar,
    /// Its adapter is being loaded.
    Adapter,
}

impl HoldReason {
    const ALL: [Self; 2] = [Self::Grammar, Self::Adapter];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    fn bit(self) -> u8 {
        1 << self.code()
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grammar => "its grammar is being compiled",
            Self::Adapter => "its adapter is being loaded",
        })
    }
}

/// All that one sequence is held for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Holds(u8);

impl Holds {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The one that is told of: others of the same sequence come after it.
    pub(crate) fn first(self) -> Option<HoldReason> {
        HoldReason::ALL.into_iter().find(|reason| self.has(*reason))
    }

    fn has(self, reason: HoldReason) -> bool {
        self.0 & reason.bit() != 0
    }

    fn add(&mut self, reason: HoldReason) {
        self.0 |= reason.bit();
    }

    fn remove(&mut self, reason: HoldReason) {
        self.0 &= !reason.bit();
    }
}

impl Saved for Holds {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.0.into());
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        let bits = u64::restore(words)?;
        (bits < 1 << HoldReason::ALL.len()).then_some(Self(bits as u8))
    }
}

impl Scheduler {
    /// Keeps a waiting sequence from running until it is [released](Self::release) as often as it is held, once for each
    /// reason. It keeps its rank, and so its place, and is in nobody's way: those behind it go on as if it were not
    /// there. It can be aborted like any other. Called between [`add`](Self::add) and the next
    /// [`schedule`](Self::schedule), it holds a sequence from the beginning.
    ///
    /// Bounds on waits count from the release: what is held may be overtaken.
    ///
    /// # Errors
    /// A [`HoldError`], and nothing has changed.
    pub fn hold(&mut self, seq: SeqId, reason: HoldReason) -> Result<(), HoldError> {
        self.state.hold(seq, reason)
    }

    /// Ends a hold; with its last one, the sequence is back in its place. False if it is not held for that reason, as
    /// when it has been aborted.
    pub fn release(&mut self, seq: SeqId, reason: HoldReason) -> bool {
        let Some(is_last) = self.state.release(seq, reason) else { return false };
        if is_last {
            self.event(seq, EventKind::Released);
        }
        true
    }

    /// Whether a step could be planned, now or when an open step is committed. Sequences that are held are no work, so
    /// that an engine can sleep until one is released.
    pub fn has_work(&self) -> bool {
        self.state.sequences.len() > self.state.num_held || self.state.has_transfers()
    }
}

impl State {
    fn hold(&mut self, id: SeqId, reason: HoldReason) -> Result<(), HoldError> {
        let seq = self.sequences.get_mut(id).ok_or(HoldError::Unknown(id))?;
        if !seq.is_queued() {
            return Err(HoldError::Running(id));
        }
        if seq.holds.is_empty() {
            self.waiting.remove(seq);
            self.num_held += 1;
        }
        seq.holds.add(reason);
        seq.refusal = None;
        self.refused.recount(seq);
        self.observe(id, |observer, seq| observer.held(seq, reason));
        Ok(())
    }

    /// Whether that was the last hold; `None` if there is none of the kind.
    fn release(&mut self, id: SeqId, reason: HoldReason) -> Option<bool> {
        let seq = self.sequences.get_mut(id).filter(|seq| seq.holds.has(reason))?;
        seq.holds.remove(reason);
        seq.refusal = None;
        let is_last = seq.holds.is_empty();
        if is_last {
            self.waiting.insert(seq);
            self.num_held -= 1;
        }
        self.refused.recount(seq);
        self.observe(id, |observer, seq| observer.released(seq, reason));
        Some(is_last)
    }
}
