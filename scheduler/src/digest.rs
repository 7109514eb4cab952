//! One number for all decisions of a run.

use std::fmt;

use quire_kvcache::Direction;

use crate::plan::{InputToken, RowKind, StepPlan};

/// A digest of plans, in order: two runs with equal digests decided alike, row by row and block by block. It guards
/// against mistakes, not against adversaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanDigest(pub u64);

impl PlanDigest {
    /// Adds a plan.
    pub fn add(&mut self, plan: &StepPlan) {
        self.word(plan.step.0);
        self.list(plan.rows.len());
        for row in &plan.rows {
            self.word(row.seq.0);
            self.word(u64::from(row.epoch.0) << 32 | u64::from(row.start));
            self.word(u64::from(row.num_tokens) << 32 | u64::from(row.num_draft_tokens));
            self.word(kind(row.kind) << 1 | u64::from(row.samples));
            if let InputToken::Sampled { step, row } = row.input {
                self.word(step.0);
                self.word(u64::from(row));
            }
            self.list(row.new_blocks.len());
            row.new_blocks.iter().for_each(|block| self.word(block.0.into()));
            row.replaced_blocks
                .iter()
                .for_each(|new| self.word(u64::from(new.table_idx) << 32 | u64::from(new.block.0)));
        }
        plan.copies.iter().for_each(|copy| self.word(u64::from(copy.src.0) << 32 | u64::from(copy.dst.0)));
        for transfer in &plan.transfers {
            self.word(transfer.id.0 << 1 | u64::from(transfer.direction == Direction::In));
            let pairs = transfer.blocks.iter();
            pairs.for_each(|(block, host)| self.word(u64::from(block.0) << 32 | u64::from(host.0)));
        }
        self.list(plan.preempted.len());
        plan.preempted.iter().chain(&plan.released).for_each(|seq| self.word(seq.0));
    }

    fn list(&mut self, len: usize) {
        self.word(len as u64);
    }

    /// The multiply-and-rotate step of FxHash, as in rustc's hash tables.
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl fmt::Display for PlanDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

fn kind(kind: RowKind) -> u64 {
    match kind {
        RowKind::New => 0,
        RowKind::Resumed => 1,
        RowKind::Continuing => 2,
    }
}
