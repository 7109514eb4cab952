//! A sequence: the unit of scheduling, and the one place on the host where its token ids live.

use quire_kvcache::{BlockHashes, BlockTable, CacheSalt, KvCacheManager, StepId, SwappedTable, TransferId};

use crate::explain::WaitClass;
use crate::hold::{HoldReason, Holds};
use crate::ids::{ClassId, Epoch, SeqId, TenantId, Time};
use crate::policy::Rank;
use crate::refusal::Refusal;

/// Where a sequence is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeqStatus {
    /// In a queue, without blocks.
    Waiting,
    /// Holding blocks on the device.
    Running,
    /// In a queue; its blocks are on the host, or on their way there.
    Swapped,
    /// Done; it holds nothing.
    Finished(FinishReason),
}

/// Why a sequence ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FinishReason {
    /// A stop token or a stop string was met: the engine's decision.
    Stop,
    /// It reached `max_output_tokens`, `max_model_len` or the edge of the pool: the scheduler's decision.
    Length,
    /// The caller gave it up.
    Abort,
    /// The device failed under it.
    Error,
}

/// A sequence to add.
#[derive(Clone, PartialEq, Debug)]
pub struct NewSequence {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most. Limits of the model and of the pool lower it, they never refuse it.
    pub max_output_tokens: u32,
    /// When the request came in.
    pub arrival: Time,
    /// On whose behalf it runs.
    pub tenant: TenantId,
    /// For policies that look at it: lower is served first.
    pub priority: i32,
    /// What cached values depend on besides the tokens.
    pub salt: CacheSalt,
    /// Whether the next token may be computed before this one has been read. Where it may not, the engine can still put
    /// another token in its place: see [`Scheduler::replace_last`](crate::Scheduler::replace_last).
    pub runs_ahead: bool,
    /// The hashes of the prompt's full blocks, from the cache's hasher with the same salt, if they have been computed
    /// already (off the engine's thread); else they are computed on arrival.
    pub hashes: Option<BlockHashes>,
}

impl NewSequence {
    /// A sequence of the default tenant and priority, without a salt.
    pub fn new(prompt: Vec<u32>, max_output_tokens: u32, arrival: Time) -> Self {
        Self {
            prompt,
            max_output_tokens,
            arrival,
            tenant: TenantId::default(),
            priority: 0,
            salt: CacheSalt::NONE,
            runs_ahead: true,
            hashes: None,
        }
    }
}

/// What is left of a sequence that has ended; its token ids move to the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FinishedSequence {
    /// The sequence.
    pub id: SeqId,
    /// Why it ended.
    pub reason: FinishReason,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub num_prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had when it was first admitted.
    pub num_cached_tokens: u32,
    /// How often it gave way.
    pub num_preemptions: u32,
    /// When it came in.
    pub arrival: Time,
    /// When it first ran, if it did.
    pub first_admitted: Option<Time>,
}

/// A sequence. `num_computed + num_in_flight` positions have been granted, out of `tokens` and the `num_unread` tokens
/// that open steps will bring:
///
/// ```text
///    0          num_computed        + num_in_flight   tokens.len()   + num_unread
///    ├── in the cache ──┼── in open steps ──┼── to compute ──┼── sampled, not read ──┤
/// ```
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) arrival: Time,
    pub(crate) tenant: TenantId,
    pub(crate) priority: i32,
    pub(crate) rank: Rank,
    pub(crate) class: ClassId,
    pub(crate) status: SeqStatus,
    pub(crate) epoch: Epoch,
    pub(crate) tokens: Vec<u32>,
    pub(crate) num_prompt_tokens: u32,
    pub(crate) max_output_tokens: u32,
    pub(crate) runs_ahead: bool,
    pub(crate) num_computed_tokens: u32,
    pub(crate) num_in_flight_tokens: u32,
    pub(crate) num_unread_tokens: u32,
    pub(crate) table: BlockTable,
    /// Its blocks on the host, while it is swapped.
    pub(crate) swapped: Option<Box<SwappedTable>>,
    /// The transfer that it waits for: out while it is swapped, in while it runs.
    pub(crate) transfer: Option<TransferId>,
    pub(crate) hashes: BlockHashes,
    /// Blocks of the table that the plans have told of; none while the device does not know the sequence.
    pub(crate) num_sent_blocks: usize,
    pub(crate) on_device: bool,
    /// The last step that has a row of it, in this epoch.
    pub(crate) last_step: Option<StepId>,
    /// Where its last token was sampled: step and row.
    pub(crate) last_sampled: Option<(StepId, u32)>,
    /// The number of the last `schedule` that admitted it or granted it tokens.
    pub(crate) last_served: u64,
    /// The number of the `schedule` that granted it tokens or preempted it.
    pub(crate) planned_in: u64,
    pub(crate) num_cached_tokens: u32,
    pub(crate) num_preemptions: u32,
    pub(crate) first_admitted: Option<Time>,
    pub(crate) served_tokens: u64,
    pub(crate) refusal: Option<Refusal>,
    /// What it is held for: it is in no queue while there is anything.
    pub(crate) holds: Holds,
    /// What it is counted as among those that wait.
    pub(crate) counted_as: Option<WaitClass>,
    pub(crate) counted_as_swapped: bool,
    /// When it began to wait, the last time.
    pub(crate) waits_since: Time,
}

impl Sequence {
    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(crate) fn num_output_tokens(&self) -> u32 {
        self.num_tokens() - self.num_prompt_tokens
    }

    /// Whether it waits: in a queue, unless it is held.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.status, SeqStatus::Waiting | SeqStatus::Swapped)
    }

    /// The first position that no step computes yet.
    pub(crate) fn next_position(&self) -> u32 {
        self.num_computed_tokens + self.num_in_flight_tokens
    }

    /// Positions that can be granted now. None when all output has been sampled and only waits to be read, nor while a
    /// token waits to be read that nothing may be computed from before.
    pub(crate) fn num_remaining_tokens(&self) -> u32 {
        let expected_output = self.num_output_tokens() + self.num_unread_tokens;
        let waits = !self.runs_ahead && self.num_unread_tokens > 0;
        if expected_output >= self.max_output_tokens || waits {
            return 0;
        }
        self.num_tokens() + self.num_unread_tokens - self.next_position()
    }

    /// The positions it will ever write: all but that of its last token.
    pub(crate) fn worst_case_tokens(&self) -> u32 {
        self.num_prompt_tokens + self.max_output_tokens - 1
    }

    /// Blocks that it may still take, a copy of a block that it shares and writes next included.
    pub(crate) fn growth(&self, cache: &KvCacheManager) -> u32 {
        let worst_case = cache.capacity().blocks_for(self.worst_case_tokens());
        let copy = u32::from(cache.needs_copy(&self.table, self.next_position()));
        worst_case.saturating_sub(self.table.num_blocks()) + copy
    }

    /// Counts positions as granted to row `row` of `step`.
    pub(crate) fn advance(&mut self, num_tokens: u32, step: StepId, row: u32) {
        if num_tokens == self.num_remaining_tokens() {
            self.num_unread_tokens += 1;
            self.last_sampled = Some((step, row));
        }
        self.num_in_flight_tokens += num_tokens;
        self.last_step = Some(step);
        self.served_tokens += u64::from(num_tokens);
    }

    /// Forgets all work on the device: what is in flight belongs to an earlier epoch now.
    pub(crate) fn start_over(&mut self) {
        self.epoch = self.epoch.next();
        (self.num_computed_tokens, self.num_in_flight_tokens, self.num_unread_tokens) = (0, 0, 0);
        (self.last_step, self.last_sampled) = (None, None);
        (self.num_sent_blocks, self.on_device) = (0, false);
    }

    pub(crate) fn into_finished(self, reason: FinishReason) -> FinishedSequence {
        FinishedSequence {
            id: self.id,
            reason,
            tokens: self.tokens,
            num_prompt_tokens: self.num_prompt_tokens,
            num_cached_tokens: self.num_cached_tokens,
            num_preemptions: self.num_preemptions,
            arrival: self.arrival,
            first_admitted: self.first_admitted,
        }
    }
}

/// What a policy or an observer may know of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceView<'a>(pub(crate) &'a Sequence, pub(crate) &'a KvCacheManager);

impl SequenceView<'_> {
    /// The sequence.
    pub fn id(&self) -> SeqId {
        self.0.id
    }

    /// When it came in.
    pub fn arrival(&self) -> Time {
        self.0.arrival
    }

    /// On whose behalf it runs.
    pub fn tenant(&self) -> TenantId {
        self.0.tenant
    }

    /// Lower is served first, by policies that look at it.
    pub fn priority(&self) -> i32 {
        self.0.priority
    }

    /// The rank its policy gave it.
    pub fn rank(&self) -> Rank {
        self.0.rank
    }

    /// The class its policy put it in.
    pub fn class(&self) -> ClassId {
        self.0.class
    }

    /// Where it is in its life.
    pub fn status(&self) -> SeqStatus {
        self.0.status
    }

    /// The present life on the device.
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// Tokens of the prompt.
    pub fn num_prompt_tokens(&self) -> u32 {
        self.0.num_prompt_tokens
    }

    /// Tokens known: the prompt and what has been generated and committed.
    pub fn num_tokens(&self) -> u32 {
        self.0.num_tokens()
    }

    /// Tokens generated and committed.
    pub fn num_output_tokens(&self) -> u32 {
        self.0.num_output_tokens()
    }

    /// Tokens it may generate in all.
    pub fn max_output_tokens(&self) -> u32 {
        self.0.max_output_tokens
    }

    /// Positions computed and committed.
    pub fn num_computed_tokens(&self) -> u32 {
        self.0.num_computed_tokens
    }

    /// Positions granted in open steps.
    pub fn num_in_flight_tokens(&self) -> u32 {
        self.0.num_in_flight_tokens
    }

    /// Positions that could be granted now: 1 for a decode, more for a prompt, 0 if it waits for a commit.
    pub fn num_remaining_tokens(&self) -> u32 {
        self.0.num_remaining_tokens()
    }

    /// Tokens of the prompt that the prefix cache had when it was first admitted.
    pub fn num_cached_tokens(&self) -> u32 {
        self.0.num_cached_tokens
    }

    /// Tokens at its beginning that the prefix cache has now, whatever was the case when it was admitted. A look-up:
    /// O(blocks of the prompt).
    pub fn num_cached_tokens_now(&self) -> u32 {
        self.1.num_cached_tokens(&self.0.tokens, &self.0.hashes)
    }

    /// A name for the sequences that begin with the same block; none if the first block is not full, or prefix caching
    /// is off.
    pub fn prefix_group(&self) -> Option<ClassId> {
        self.0.hashes.as_slice().first().map(|hash| ClassId(hash.low_bits()))
    }

    /// Positions granted: computed, or in open steps.
    pub fn num_granted_tokens(&self) -> u32 {
        self.0.next_position()
    }

    /// Blocks it holds.
    pub fn num_blocks(&self) -> u32 {
        self.0.table.num_blocks()
    }

    /// What it is held for, if it is: one reason of those there are.
    pub fn held_for(&self) -> Option<HoldReason> {
        self.0.holds.first()
    }

    /// How often it gave way.
    pub fn num_preemptions(&self) -> u32 {
        self.0.num_preemptions
    }

    /// Tokens granted to it since it came in, those of earlier epochs included.
    pub fn served_tokens(&self) -> u64 {
        self.0.served_tokens
    }
}
