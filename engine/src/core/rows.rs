//! Which sequence has which place on the device.

use std::collections::BTreeSet;

use foldhash::{HashMap, HashMapExt};
use quire_executor::RowId;
use quire_scheduler::SeqId;

/// The rows of the device. A sequence has one from the step that adds it to the step that releases it.
#[derive(Debug)]
pub(super) struct RowSlots {
    by_seq: HashMap<SeqId, RowId>,
    free: BTreeSet<RowId>,
    max_num_seqs: u32,
}

impl RowSlots {
    pub(super) fn new(max_num_seqs: u32) -> Self {
        Self { by_seq: HashMap::new(), free: (0..max_num_seqs).map(RowId).collect(), max_num_seqs }
    }

    /// The place of a sequence that the device knows.
    pub(super) fn get(&self, seq: SeqId) -> Option<RowId> {
        self.by_seq.get(&seq).copied()
    }

    /// Gives a place to a sequence: the first that is free, so that rows stay dense.
    ///
    /// # Panics
    ///
    /// If none is free, or it has one: the scheduler releases before it adds, and runs at most `max_num_seqs`.
    pub(super) fn assign(&mut self, seq: SeqId) -> RowId {
        let row = self.free.pop_first().expect("no more sequences run than there are rows");
        assert!(self.by_seq.insert(seq, row).is_none(), "sequence {seq} is added to the device twice");
        row
    }

    /// Takes a place back; `None` if the device does not know the sequence (any more).
    pub(super) fn release(&mut self, seq: SeqId) -> Option<RowId> {
        let row = self.by_seq.remove(&seq)?;
        self.free.insert(row);
        Some(row)
    }

    /// The device has forgotten all rows.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.max_num_seqs);
    }
}
