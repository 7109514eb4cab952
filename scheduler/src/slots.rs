//! All unfinished sequences, by id.

use std::collections::VecDeque;

use crate::ids::SeqId;
use crate::sequence::Sequence;

/// A ring indexed by id. Ids are given in order, so that it reaches from the oldest unfinished sequence to the newest;
/// one that has ended in between leaves a null pointer. Look-up is O(1) and hashes nothing.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    base: u64,
    slots: VecDeque<Option<Box<Sequence>>>,
    len: usize,
}

impl Sequences {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn next_id(&self) -> SeqId {
        SeqId(self.base + self.slots.len() as u64)
    }

    pub(crate) fn push(&mut self, seq: Sequence) {
        assert_eq!(seq.id, self.next_id(), "ids are given in order");
        self.slots.push_back(Some(Box::new(seq)));
        self.len += 1;
    }

    pub(crate) fn get(&self, id: SeqId) -> Option<&Sequence> {
        self.slots.get(self.place(id)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let place = self.place(id)?;
        self.slots.get_mut(place)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let place = self.place(id)?;
        let seq = self.slots.get_mut(place)?.take()?;
        self.len -= 1;
        while self.slots.front().is_some_and(Option::is_none) {
            self.slots.pop_front();
            self.base += 1;
        }
        Some(*seq)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    fn place(&self, id: SeqId) -> Option<usize> {
        usize::try_from(id.0.checked_sub(self.base)?).ok()
    }
}
