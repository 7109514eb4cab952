//! The waiting sequences, in classes, each in the order of ranks.

use std::collections::{BTreeMap, BTreeSet};

use quire_kvcache::KvCacheManager;

use crate::ids::{ClassId, SeqId};
use crate::policy::Rank;
use crate::sequence::{Sequence, SequenceView};
use crate::slots::Sequences;

type Key = (Rank, SeqId);

/// Ordered queues: insertion, removal and the best head of all classes are O(log n).
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    classes: BTreeMap<ClassId, BTreeSet<Key>>,
    /// The first of each class.
    heads: BTreeSet<(Key, ClassId)>,
    len: usize,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, seq: &Sequence) {
        let key = (seq.rank, seq.id);
        let inserted = self.edit(seq.class, |queue| queue.insert(key));
        assert!(inserted, "a sequence waits in one place");
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, seq: &Sequence) {
        let key = (seq.rank, seq.id);
        let removed = self.edit(seq.class, |queue| queue.remove(&key));
        assert!(removed, "a waiting sequence is in its queue");
        self.len -= 1;
    }

    pub(crate) fn head(&self, class: ClassId) -> Option<SeqId> {
        self.classes.get(&class)?.first().map(|(_, seq)| *seq)
    }

    /// How many of its class come before a sequence.
    pub(crate) fn place(&self, seq: &Sequence) -> usize {
        let before = |queue: &BTreeSet<Key>| queue.range(..(seq.rank, seq.id)).count();
        self.classes.get(&seq.class).map_or(0, before)
    }

    pub(crate) fn of_class(&self, class: ClassId) -> impl Iterator<Item = SeqId> + '_ {
        self.classes.get(&class).into_iter().flatten().map(|(_, seq)| *seq)
    }

    fn edit(&mut self, class: ClassId, change: impl FnOnce(&mut BTreeSet<Key>) -> bool) -> bool {
        let queue = self.classes.entry(class).or_default();
        let before = queue.first().copied();
        let changed = change(queue);
        let after = queue.first().copied();
        if queue.is_empty() {
            self.classes.remove(&class);
        }
        if before != after {
            before.map(|key| self.heads.remove(&(key, class)));
            after.map(|key| self.heads.insert((key, class)));
        }
        changed
    }
}

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
