//! The plan of a step, as plain data.

use quire_kvcache::{BlockCopy, BlockId, StepId, Transfer};

use crate::ids::{Epoch, SeqId};

/// What one step computes, as a difference to what the device knows from earlier plans.
///
/// The device applies it in this order: `released` rows are dropped, `transfers` are started, new and resumed rows are
/// added, table changes are made, `copies` run, and then the kernels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepPlan {
    /// The step, to be named in its commit.
    pub step: StepId,
    /// Who computes what. A row's place in this list is what [`InputToken::Sampled`] refers to. Empty only
    /// in a plan that is there to wait: its step ends when all transfers so far are done.
    pub rows: Vec<PlannedRow>,
    /// Copies of shared blocks about to be written.
    pub copies: Vec<BlockCopy>,
    /// Blocks that go to the host or come back, behind the steps before this one and before its copies.
    pub transfers: Vec<Transfer>,
    /// Sequences preempted since the last plan; they are among `released`, too, where the device knew them.
    pub preempted: Vec<SeqId>,
    /// Sequences that the device knows and will not see again, or not before they are added anew: ended or preempted
    /// since the last plan. One may be released and resumed in the same plan.
    pub released: Vec<SeqId>,
    /// Tokens over all rows.
    pub num_tokens: u32,
}

/// One sequence's part of a step: it computes the positions `start..start + num_tokens`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedRow {
    /// The sequence.
    pub seq: SeqId,
    /// Its life; comes back with the result.
    pub epoch: Epoch,
    /// Whether the device knows the sequence.
    pub kind: RowKind,
    /// The first position computed: so many are in the cache when the row runs.
    pub start: u32,
    /// Positions computed, at least 1.
    pub num_tokens: u32,
    /// Draft tokens among them. Speculation is not built: always 0.
    pub num_draft_tokens: u32,
    /// Where the ids of these positions are.
    pub input: InputToken,
    /// Whether the row computes the last position there is, and so samples the next token.
    pub samples: bool,
    /// Blocks appended to the device's table; all blocks of the table for a new or resumed row.
    pub new_blocks: Vec<BlockId>,
    /// Places of the device's table that change, because a shared block got a copy; none for a new or resumed row.
    pub replaced_blocks: Vec<ReplacedBlock>,
}

/// Whether the device knows a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowKind {
    /// It does not: add it, with all token ids and all blocks.
    New,
    /// It did, before a preemption: add it anew, with all token ids (the generated ones too) and all blocks.
    Resumed,
    /// It does.
    Continuing,
}

/// Where the token ids of a row are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputToken {
    /// In [`Scheduler::tokens`](crate::Scheduler::tokens), at the row's positions.
    Known,
    /// The host has not read it yet: the one position of the row is the token sampled by row `row` of step `step`.
    Sampled {
        /// The step, open now.
        step: StepId,
        /// The row's place in that step's plan.
        row: u32,
    },
}

/// A change of a block table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplacedBlock {
    /// The place in the table.
    pub table_idx: u32,
    /// The block that is there now.
    pub block: BlockId,
}
