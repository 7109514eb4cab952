//! The outputs of a request that are being generated.

use quire_scheduler::SeqId;

use super::branch::Branch;

/// Branches by their sequences. Most requests have one, and it is asked for at each token: so they lie in a row, in the order
/// of sequences, which is the one that they come in.
#[derive(Default)]
pub(super) struct Branches(Vec<(SeqId, Branch)>);

impl Branches {
    /// Adds a branch, whose sequence is newer than all others.
    pub(super) fn push(&mut self, seq: SeqId, branch: Branch) {
        debug_assert!(self.0.last().is_none_or(|(last, _)| *last < seq), "sequences come in order");
        self.0.push((seq, branch));
    }

    pub(super) fn get(&self, seq: SeqId) -> Option<&Branch> {
        self.0.get(self.place(seq)?).map(|(_, branch)| branch)
    }

    pub(super) fn get_mut(&mut self, seq: SeqId) -> Option<&mut Branch> {
        let place = self.place(seq)?;
        self.0.get_mut(place).map(|(_, branch)| branch)
    }

    pub(super) fn remove(&mut self, seq: SeqId) -> Option<Branch> {
        self.place(seq).map(|place| self.0.remove(place).1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SeqId, &Branch)> {
        self.0.iter().map(|(seq, branch)| (*seq, branch))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Branch> {
        self.0.iter_mut().map(|(_, branch)| branch)
    }

    fn place(&self, seq: SeqId) -> Option<usize> {
        self.0.binary_search_by_key(&seq, |(seq, _)| *seq).ok()
    }
}
