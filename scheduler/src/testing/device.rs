//! A fake device: it knows only what plans have told it, and remembers what was computed in every slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quire_kvcache::{BlockId, Direction, StepId, Transfer, TransferId};

use crate::ids::SeqId;
use crate::plan::{InputToken, PlannedRow, RowKind, StepPlan};
use crate::testing::rng::mix;

/// Token ids are below this.
pub(crate) const VOCAB: u32 = 32;

/// The "values" of a position: a digest of all tokens up to it.
pub(crate) fn digest(before: u64, token: u32) -> u64 {
    mix(before ^ mix(u64::from(token) + 1))
}

/// The token sampled after a position, a function of all tokens up to it and of the sequence's seed.
pub(crate) fn sample(values: u64, seed: u64) -> u32 {
    (mix(values ^ seed) % u64::from(VOCAB)) as u32
}

#[derive(Debug)]
struct DeviceRow {
    table: Vec<BlockId>,
    tokens: Vec<u32>,
    num_computed: u32,
    seed: u64,
}

/// Executes plans in order, at once; the caller holds back the results.
#[derive(Debug)]
pub(crate) struct FakeDevice {
    block_size: usize,
    slots: Vec<Option<u64>>,
    rows: BTreeMap<SeqId, DeviceRow>,
    /// Slots of the host, and transfers that were started and are not made yet.
    host: Vec<Option<u64>>,
    transfers: VecDeque<(StepId, Transfer)>,
    /// Tokens sampled by the rows of earlier steps.
    sampled: BTreeMap<StepId, Vec<Option<u32>>>,
}

impl FakeDevice {
    pub(crate) fn new(num_blocks: u32, block_size: u32, num_host_blocks: u32) -> Self {
        let num_slots = num_blocks as usize * block_size as usize;
        Self {
            block_size: block_size as usize,
            slots: vec![None; num_slots],
            rows: BTreeMap::new(),
            host: vec![None; num_host_blocks as usize * block_size as usize],
            transfers: VecDeque::new(),
            sampled: BTreeMap::new(),
        }
    }

    /// Runs a step and returns what each row sampled. `added` gives tokens and seed of a sequence when a row brings it.
    pub(crate) fn execute(
        &mut self,
        plan: &StepPlan,
        added: impl Fn(SeqId) -> (Vec<u32>, u64),
    ) -> Vec<Option<u32>> {
        for seq in &plan.released {
            assert!(self.rows.remove(seq).is_some(), "released sequence {seq} is on the device");
        }
        self.transfers.extend(plan.transfers.iter().map(|transfer| (plan.step, transfer.clone())));
        plan.rows.iter().for_each(|row| self.apply(row, &added));
        let mut written = BTreeSet::new();
        for copy in &plan.copies {
            assert!(written.insert(copy.dst), "block {} is copied to twice", copy.dst);
            assert!(!plan.copies.iter().any(|other| other.dst == copy.src), "copies are in no chain");
            let src = copy.src.index() * self.block_size;
            self.slots.copy_within(src..src + self.block_size, copy.dst.index() * self.block_size);
        }
        plan.rows.iter().for_each(|row| self.claim(row, &mut written));
        let tokens: Vec<_> = plan.rows.iter().map(|row| self.compute(row)).collect();
        self.sampled.insert(plan.step, tokens.clone());
        tokens
    }

    /// Forgets everything, as a device does that was reset.
    pub(crate) fn reset(&mut self) {
        self.rows.clear();
        self.sampled.clear();
        self.slots.fill(None);
        self.host.fill(None);
        self.transfers.clear();
    }

    /// Makes the next transfer that was started with `step` or before: as late as it can be made, so that whoever reads
    /// or writes its blocks in between is found out.
    pub(crate) fn finish_transfer(&mut self, step: StepId) -> Option<TransferId> {
        let (_, transfer) = self.transfers.pop_front_if(|(started, _)| *started <= step)?;
        for (block, host) in transfer.blocks {
            let device = &mut self.slots[block.index() * self.block_size..][..self.block_size];
            let host = &mut self.host[host.0 as usize * self.block_size..][..self.block_size];
            match transfer.direction {
                Direction::Out => host.copy_from_slice(device),
                Direction::In => device.copy_from_slice(host),
            }
        }
        Some(transfer.id)
    }

    fn apply(&mut self, row: &PlannedRow, added: &impl Fn(SeqId) -> (Vec<u32>, u64)) {
        if row.kind != RowKind::Continuing {
            let (tokens, seed) = added(row.seq);
            let new = DeviceRow { table: Vec::new(), tokens, num_computed: row.start, seed };
            assert!(self.rows.insert(row.seq, new).is_none(), "sequence {} is new to the device", row.seq);
        }
        let known = self.rows.get_mut(&row.seq).expect("a continuing sequence is on the device");
        for replaced in &row.replaced_blocks {
            known.table[replaced.table_idx as usize] = replaced.block;
        }
        known.table.extend(&row.new_blocks);
    }

    /// Each block is written by one row of a step, and no block that another row's table holds is.
    fn claim(&self, row: &PlannedRow, written: &mut BTreeSet<BlockId>) {
        let own = &self.rows[&row.seq];
        let first = row.start as usize / self.block_size;
        let last = (row.start + row.num_tokens - 1) as usize / self.block_size;
        for block in &own.table[first..=last] {
            let others =
                self.rows.iter().filter(|(seq, other)| **seq != row.seq && other.table.contains(block));
            assert_eq!(others.count(), 0, "block {block}, written by sequence {}, is shared", row.seq);
            written.insert(*block);
        }
    }

    fn compute(&mut self, row: &PlannedRow) -> Option<u32> {
        let known = self.rows.get_mut(&row.seq).expect("rows were applied before");
        assert_eq!(known.num_computed, row.start, "sequence {} goes on where it was", row.seq);
        if let InputToken::Sampled { step, row: sampler } = row.input {
            assert_eq!(row.num_tokens, 1, "one token is in flight");
            let token = self.sampled[&step][sampler as usize];
            assert_eq!(
                token,
                known.tokens.get(row.start as usize).copied(),
                "the input is the token sampled last"
            );
        }
        let slot = |position: usize| {
            known.table[position / self.block_size].index() * self.block_size + position % self.block_size
        };
        let mut values = 0;
        for position in 0..(row.start + row.num_tokens) as usize {
            values = digest(values, known.tokens[position]);
            if position >= row.start as usize {
                self.slots[slot(position)] = Some(values);
            }
            let found = self.slots[slot(position)];
            assert_eq!(found, Some(values), "sequence {} reads its own position {position}", row.seq);
        }
        known.num_computed += row.num_tokens;
        row.samples.then(|| {
            assert_eq!(known.num_computed as usize, known.tokens.len(), "a row samples after its last token");
            let token = sample(values, known.seed);
            known.tokens.push(token);
            token
        })
    }
}
