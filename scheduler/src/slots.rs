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
    /// Of `len` sequences in their slots, of which the first is that of the id `base`.
    pub(crate) fn from_slots(base: u64, slots: VecDeque<Option<Box<Sequence>>>, len: usize) -> Self {
        Self { base, slots, len }
    }

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

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    fn place(&self, id: SeqId) -> Option<usize> {
        usize::try_from(id.0.checked_sub(self.base)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond its tokens, and the 16 bytes of hash that each block of them has. Vectors that grow are three quarters full
    /// in the mean, and nodes of a B-tree two thirds.
    #[test]
    fn a_waiting_sequence_takes_at_most_512_bytes() {
        let in_vectors = size_of::<Option<Box<Sequence>>>() + crate::order::NODE_BYTES;
        let in_one_class = size_of::<Sequence>() + in_vectors * 4 / 3;
        let in_its_own = in_one_class + crate::queue::HEAD_BYTES * 3 / 2;
        println!("{in_one_class} bytes, {in_its_own} in a class of its own");
        assert!(in_its_own <= 512, "{in_its_own}");
    }
}
