//! The running sequences, in the order of ranks.

use quire_kvcache::KvCacheManager;

use crate::ids::{SeqId, Time};
use crate::policy::Rank;
use crate::preemption::MAX_PREEMPTIONS;
use crate::sequence::{Sequence, SequenceView};
use crate::slots::Sequences;

/// At most `max_num_seqs` of them: a sorted vector.
#[derive(Debug, Default)]
pub(crate) struct RunningSet {
    entries: Vec<Entry>,
    /// How many of them have given way often enough.
    num_spared: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    rank: Rank,
    id: SeqId,
    arrival: Time,
    is_spared: bool,
}

impl Entry {
    fn of(seq: &Sequence) -> Self {
        let is_spared = seq.num_preemptions >= MAX_PREEMPTIONS;
        Self { rank: seq.rank, id: seq.id, arrival: seq.arrival, is_spared }
    }
}

impl RunningSet {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn insert(&mut self, seq: &Sequence) {
        let entry = Entry::of(seq);
        let place = self.entries.binary_search(&entry);
        self.entries.insert(place.expect_err("a sequence runs once"), entry);
        self.num_spared += usize::from(entry.is_spared);
    }

    pub(crate) fn remove(&mut self, seq: &Sequence) {
        let place = self.entries.binary_search(&Entry::of(seq));
        let entry = self.entries.remove(place.expect("a running sequence is among the running"));
        self.num_spared -= usize::from(entry.is_spared);
    }

    pub(crate) fn get(&self, place: usize) -> Option<SeqId> {
        self.entries.get(place).map(|entry| entry.id)
    }

    /// The one that came in first, whatever its rank.
    pub(crate) fn oldest(&self) -> Option<SeqId> {
        self.entries.iter().min_by_key(|entry| (entry.arrival, entry.id)).map(|entry| entry.id)
    }

    /// Whether one that has given way often enough could have to again, if `newcomer` ran on less than all need to the
    /// end: to one that ranks before it, or, whatever its rank, to the oldest of those that come after it.
    pub(crate) fn would_tire(&self, newcomer: &Sequence) -> bool {
        if self.num_spared == 0 {
            return false;
        }
        let newcomer = Entry::of(newcomer);
        let mut oldest_behind = (newcomer.arrival, newcomer.id);
        for entry in self.entries.iter().rev() {
            let is_in_its_way = *entry > newcomer || oldest_behind < (entry.arrival, entry.id);
            if entry.is_spared && is_in_its_way {
                return true;
            }
            oldest_behind = oldest_behind.min((entry.arrival, entry.id));
        }
        false
    }

    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = SeqId> + '_ {
        self.entries.iter().map(|entry| entry.id)
    }
}

/// Running sequences: all of them, or those that may give way.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    pub(crate) set: &'a RunningSet,
    pub(crate) sequences: &'a Sequences,
    pub(crate) cache: &'a KvCacheManager,
    pub(crate) only: Only,
}

/// Which of the running sequences a view shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Only {
    All,
    /// Those that may give way to `needy` in the `schedule` call of that number.
    Victims {
        needy: SeqId,
        needy_rank: Rank,
        oldest: SeqId,
        schedule: u64,
    },
}

impl<'a> Running<'a> {
    /// The sequences, the one that ranks first first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = SequenceView<'a>> + use<'a> {
        let Self { set, sequences, cache, only } = *self;
        let shown = move |seq: &&Sequence| only.shows(seq);
        set.ids_of(sequences).filter(shown).map(|seq| SequenceView(seq, cache))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl RunningSet {
    fn ids_of<'a>(
        &'a self,
        sequences: &'a Sequences,
    ) -> impl DoubleEndedIterator<Item = &'a Sequence> + use<'a> {
        self.entries.iter().filter_map(|entry| sequences.get(entry.id))
    }
}

impl Only {
    fn shows(self, seq: &Sequence) -> bool {
        match self {
            Self::All => true,
            Self::Victims { needy, needy_rank, oldest, schedule } => {
                let yields = needy == oldest || (seq.rank, seq.id) > (needy_rank, needy);
                yields
                    && seq.id != needy
                    && seq.id != oldest
                    && seq.planned_in != schedule
                    && seq.transfer.is_none()
            }
        }
    }
}
