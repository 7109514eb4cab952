//! The calls of a scheduler.

use crate::cost::StepWork;
use crate::hold::HoldReason;
use crate::sequence::FinishReason;

/// A call with all that a replay needs, and what came of it as far as a reader wants to know without one.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Call {
    /// Where a chunk begins.
    Base(Base),
    Add(Added),
    Schedule {
        now: u64,
        planned: Option<Planned>,
    },
    Commit(Committed),
    Abort {
        seq: u64,
    },
    /// A waiting sequence is kept from running, or is so no more.
    Hold {
        seq: u64,
        reason: HoldReason,
    },
    Release {
        seq: u64,
        reason: HoldReason,
    },
    Fork {
        parent: u64,
        num_tokens: u32,
        num_children: u32,
        /// The names of each child's blocks.
        hashes: Vec<u64>,
    },
    /// A fork that goes on with another token.
    ForkWith {
        parent: u64,
        num_tokens: u32,
        /// The names of the child's blocks.
        hashes: Vec<u64>,
    },
    /// Another token in place of the last.
    ReplaceLast {
        seq: u64,
        /// The name of the block that is full with it, if one is.
        hashes: Vec<u64>,
    },
    ResetPrefixCache,
    /// A beginning of full blocks that is kept, by its salt and names.
    Pin {
        salt: u64,
        num_tokens: u32,
        hashes: Vec<u64>,
    },
    Unpin {
        pin: u64,
    },
    FailOpenSteps,
    /// Transfers that are done.
    FinishTransfers {
        transfers: Vec<u64>,
    },
    /// What was measured: bytes and tokens a second.
    SetRates {
        swap_bytes_per_s: f64,
        prefill_tokens_per_s: f64,
    },
    /// Not a call: the whole state as it is here, from which a replay can begin.
    Checkpoint {
        words: Vec<u64>,
    },
}

/// What differences are taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Base {
    pub(super) now: u64,
    pub(super) next_seq: u64,
    pub(super) step: u64,
    pub(super) context_tokens: u64,
    pub(super) digest: u64,
    pub(super) gauges: Gauges,
}

/// Counts after a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Gauges {
    pub(super) num_running: u32,
    pub(super) num_waiting: u32,
    pub(super) num_swapped: u32,
    pub(super) live_blocks: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Added {
    pub(super) seq: u64,
    pub(super) arrival: u64,
    pub(super) prompt_tokens: u32,
    pub(super) max_output_tokens: u32,
    pub(super) tenant: u64,
    pub(super) priority: i32,
    pub(super) salt: u64,
    pub(super) runs_ahead: bool,
    /// Another sequence of a request that is there, which found no place as a fork.
    pub(super) is_sibling: bool,
    pub(super) hashes: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Planned {
    pub(super) work: StepWork,
    /// The low bits of the digest of all plans so far.
    pub(super) check: u16,
    pub(super) gauges: Gauges,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Committed {
    pub(super) now: u64,
    pub(super) device_us: u64,
    /// Results, by their place among those that counted, that were not one token and no finish.
    pub(super) exceptions: Vec<Exception>,
    /// Names of the blocks that became full, each with its sequence.
    pub(super) hashes: Vec<(u64, u64)>,
    /// Sequences that ended, with the number of tokens they had generated.
    pub(super) finished: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exception {
    pub(super) place: u32,
    pub(super) num_tokens: u32,
    pub(super) finish: Option<FinishReason>,
}

/// What a call begins with.
pub(super) mod tag {
    pub(in crate::record) const BASE: u8 = 0;
    pub(in crate::record) const ADD: u8 = 1;
    pub(in crate::record) const IDLE: u8 = 2;
    pub(in crate::record) const PLAN_OF_DECODES: u8 = 3;
    pub(in crate::record) const PLAN: u8 = 4;
    pub(in crate::record) const COMMIT_AS_USUAL: u8 = 5;
    pub(in crate::record) const COMMIT: u8 = 6;
    pub(in crate::record) const ABORT: u8 = 7;
    pub(in crate::record) const FORK: u8 = 8;
    pub(in crate::record) const RESET_PREFIX_CACHE: u8 = 9;
    pub(in crate::record) const FAIL_OPEN_STEPS: u8 = 10;
    pub(in crate::record) const FINISH_TRANSFERS: u8 = 11;
    pub(in crate::record) const SET_RATES: u8 = 12;
    pub(in crate::record) const CHECKPOINT: u8 = 13;
    pub(in crate::record) const PIN: u8 = 14;
    pub(in crate::record) const UNPIN: u8 = 15;
    pub(in crate::record) const HOLD: u8 = 16;
    pub(in crate::record) const RELEASE: u8 = 17;
    pub(in crate::record) const FORK_WITH: u8 = 18;
    pub(in crate::record) const REPLACE_LAST: u8 = 19;
}

impl Gauges {
    pub(super) fn list(&self) -> [u32; 4] {
        [self.num_running, self.num_waiting, self.num_swapped, self.live_blocks]
    }

    pub(super) fn from_list([num_running, num_waiting, num_swapped, live_blocks]: [u32; 4]) -> Self {
        Self { num_running, num_waiting, num_swapped, live_blocks }
    }
}
