//! The waiting sequences, in classes, each in the order of ranks.

use std::collections::{BTreeMap, BTreeSet};

use quire_kvcache::KvCacheManager;

use crate::ids::{ClassId, SeqId};
use crate::order::{Key, Nodes, OrderedSet};
use crate::sequence::{Sequence, SequenceView};
use crate::slots::Sequences;

/// Ordered queues: insertion, removal, a place in a queue and the best head of all classes are O(log n).
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    nodes: Nodes,
    classes: BTreeMap<ClassId, OrderedSet>,
    /// The first of each class.
    heads: BTreeSet<(Key, ClassId)>,
    len: usize,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, seq: &Sequence) {
        let queue = self.classes.entry(seq.class).or_insert(OrderedSet::EMPTY);
        let before = queue.first(&self.nodes);
        queue.insert(&mut self.nodes, (seq.rank, seq.id));
        let after = queue.first(&self.nodes);
        self.move_head(seq.class, before, after);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, seq: &Sequence) {
        let queue = self.classes.get_mut(&seq.class).expect("a waiting sequence has a queue");
        let before = queue.first(&self.nodes);
        let removed = queue.remove(&mut self.nodes, (seq.rank, seq.id));
        assert!(removed, "a waiting sequence is in its queue");
        let after = queue.first(&self.nodes);
        if after.is_none() {
            self.classes.remove(&seq.class);
        }
        self.move_head(seq.class, before, after);
        self.len -= 1;
    }

    pub(crate) fn head(&self, class: ClassId) -> Option<SeqId> {
        self.classes.get(&class)?.first(&self.nodes).map(|(_, seq)| seq)
    }

    /// How many of its class come before a sequence.
    pub(crate) fn place(&self, seq: &Sequence) -> usize {
        self.classes.get(&seq.class).map_or(0, |queue| queue.place(&self.nodes, (seq.rank, seq.id)))
    }

    pub(crate) fn of_class(&self, class: ClassId) -> impl Iterator<Item = SeqId> + use<> {
        let keys = self.classes.get(&class).map_or(Vec::new(), |queue| queue.keys(&self.nodes));
        keys.into_iter().map(|(_, seq)| seq)
    }

    fn move_head(&mut self, class: ClassId, before: Option<Key>, after: Option<Key>) {
        if before != after {
            before.map(|key| self.heads.remove(&(key, class)));
            after.map(|key| self.heads.insert((key, class)));
        }
    }
}

/// What the head of a class takes, where every sequence is a class of its own.
#[cfg(test)]
pub(crate) const HEAD_BYTES: usize = size_of::<(Key, ClassId)>() + size_of::<(ClassId, OrderedSet)>();

/// The first waiting sequence of every class.
#[derive(Clone, Copy, Debug)]
pub struct ClassHeads<'a> {
    pub(crate) waiting: &'a Waiting,
    pub(crate) sequences: &'a Sequences,
    pub(crate) cache: &'a KvCacheManager,
}

impl<'a> ClassHeads<'a> {
    /// The head that ranks first of all.
    pub fn first(&self) -> Option<SequenceView<'a>> {
        self.iter().next()
    }

    /// The heads, the one that ranks first first.
    pub fn iter(&self) -> impl Iterator<Item = SequenceView<'a>> + use<'a> {
        let heads = *self;
        self.waiting.heads.iter().filter_map(move |((_, seq), _)| heads.view(*seq))
    }

    /// The head of one class.
    pub fn of(&self, class: ClassId) -> Option<SequenceView<'a>> {
        self.waiting.head(class).and_then(|seq| self.view(seq))
    }

    /// How many classes have somebody waiting.
    pub fn len(&self) -> usize {
        self.waiting.heads.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.heads.is_empty()
    }

    fn view(&self, seq: SeqId) -> Option<SequenceView<'a>> {
        self.sequences.get(seq).map(|seq| SequenceView(seq, self.cache))
    }
}
