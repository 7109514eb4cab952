//! What an executor can fail at.

use std::sync::Arc;

use crate::{MemoryError, RowId};

/// A failure of a step or of a device.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// A kernel failed.
    #[error("step {step} failed")]
    Step {
        /// Number of the step.
        step: u64,
        /// What happened.
        #[source]
        source: quire_kernels::Error,
    },
    /// The batch does not fit the rows that are there: a bug of whoever made it, caught before the device saw it.
    #[error("step {step} is no step of these rows")]
    Batch {
        /// Number of the step.
        step: u64,
        /// What is wrong with it.
        #[source]
        source: BatchError,
    },
    /// The thread panicked while it ran a step; it lives on.
    #[error("step {step} panicked: {message}")]
    Panicked {
        /// Number of the step.
        step: u64,
        /// What the panic said.
        message: String,
    },
    /// A ticket was collected out of order.
    #[error("step {given} was collected, {expected:?} is the oldest open one")]
    OutOfOrder {
        /// The step asked for.
        given: u64,
        /// The oldest open step; `None` where none is open.
        expected: Option<u64>,
    },
    /// An earlier step failed, and this one with it.
    #[error("step {step} was dropped after an earlier step failed")]
    Dropped {
        /// Number of the step.
        step: u64,
    },
    /// Masks for a step that does not wait for any, or not next.
    #[error("step {step} got masks, {expected:?} is the oldest that waits for some")]
    NotGated {
        /// The step.
        step: u64,
        /// The oldest open step that waits; `None` where none does.
        expected: Option<u64>,
    },
    /// A step was collected whose gated rows wait for their masks.
    #[error("step {step} was collected before its gated rows had their masks")]
    NoMasks {
        /// Number of the step.
        step: u64,
    },
    /// More steps were submitted than may be open.
    #[error("{open} steps are open, at most {max_in_flight} may be")]
    TooManyInFlight {
        /// Open steps.
        open: usize,
        /// The limit.
        max_in_flight: usize,
    },
    /// A backend cannot do what was asked of it outside of a step, at start or reset.
    #[error("the device cannot be set up")]
    Kernels(#[from] quire_kernels::Error),
    /// The model cannot be loaded.
    #[error("the model cannot be loaded")]
    Load(#[source] Arc<quire_models::Error>),
    /// Memory cannot be planned.
    #[error("the memory does not suffice")]
    Memory(#[from] MemoryError),
    /// The worker's thread has ended.
    #[error("the worker has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
    /// A part that has its place but is not there yet.
    #[error("{what} are not built yet")]
    NotBuilt {
        /// What was asked for.
        what: &'static str,
    },
}

/// Why a batch is refused before anything of it runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A step number that does not ascend.
    #[error("step {given} after step {last}")]
    StepOrder {
        /// The last step.
        last: u64,
        /// This one.
        given: u64,
    },
    /// A place past the last row.
    #[error("row {} of {max_num_seqs}", row.0)]
    RowRange {
        /// The row.
        row: RowId,
        /// How many there are.
        max_num_seqs: usize,
    },
    /// A row that was not added, or released already.
    #[error("row {} holds no sequence", row.0)]
    Vacant {
        /// The row.
        row: RowId,
    },
    /// A row that was added twice.
    #[error("row {} holds a sequence already", row.0)]
    Occupied {
        /// The row.
        row: RowId,
    },
    /// A row planned twice in one step.
    #[error("row {} is planned twice", row.0)]
    PlannedTwice {
        /// The row.
        row: RowId,
    },
    /// A plan for another life of the sequence.
    #[error("row {} is at epoch {expected}, planned at {given}", row.0)]
    Epoch {
        /// The row.
        row: RowId,
        /// The epoch it was added with.
        expected: u32,
        /// The plan's.
        given: u32,
    },
    /// More computed tokens than leave one to compute, or a prompt longer than the ids.
    #[error("row {} has {num_tokens} tokens, {num_prompt_tokens} of them prompt, {num_computed_tokens} computed", row.0)]
    Added {
        /// The row.
        row: RowId,
        /// Its ids.
        num_tokens: usize,
        /// Those of the prompt.
        num_prompt_tokens: u32,
        /// Those in the cache.
        num_computed_tokens: u32,
    },
    /// A token id outside of the vocabulary.
    #[error("row {} holds token {token_id}, the vocabulary has {vocab_size}", row.0)]
    TokenId {
        /// The row.
        row: RowId,
        /// The id.
        token_id: u32,
        /// Ids are below it.
        vocab_size: usize,
    },
    /// More log-probabilities than the memory was planned for.
    #[error("row {} asks for {given} log-probabilities a token, at most {max_logprobs} were planned for", row.0)]
    Logprobs {
        /// The row.
        row: RowId,
        /// What it asks for.
        given: u32,
        /// The limit.
        max_logprobs: u32,
    },
    /// No tokens, or more than the row has left.
    #[error("row {} has {left} tokens to compute, planned {given}", row.0)]
    RowTokens {
        /// The row.
        row: RowId,
        /// What is left.
        left: usize,
        /// The plan's.
        given: u32,
    },
    /// A sample before the last token of a row.
    #[error("row {} samples with {left} tokens left to compute", row.0)]
    SampleBeforeEnd {
        /// The row.
        row: RowId,
        /// What is left after the step.
        left: usize,
    },
    /// A logits processor that the device does not have.
    #[error("row {} asks for logits processor {given} of {num_processors}", row.0)]
    Processor {
        /// The row.
        row: RowId,
        /// What it asks for.
        given: u32,
        /// How many there are.
        num_processors: usize,
    },
    /// A gated row that chooses nothing.
    #[error("row {} is gated but does not sample", row.0)]
    GatedWithoutSample {
        /// The row.
        row: RowId,
    },
    /// A mask for a row that is not gated in the step, or a second one.
    #[error("row {} got a mask that it does not wait for", row.0)]
    UnexpectedMask {
        /// The row.
        row: RowId,
    },
    /// A mask of another vocabulary.
    #[error("row {} got a mask of {given} words, the vocabulary needs {expected}", row.0)]
    MaskWords {
        /// The row.
        row: RowId,
        /// Words of 32 tokens.
        expected: usize,
        /// The mask's.
        given: usize,
    },
    /// Guesses to verify.
    #[error("row {} has {given} draft tokens: speculation is not built", row.0)]
    DraftTokens {
        /// The row.
        row: RowId,
        /// The plan's.
        given: u32,
    },
    /// More tokens than a step may compute.
    #[error("{given} tokens in a step of at most {max_num_batched_tokens}")]
    StepTokens {
        /// The limit.
        max_num_batched_tokens: usize,
        /// The batch's.
        given: usize,
    },
    /// A row longer than a sequence may be.
    #[error("row {} grows to {given} tokens of at most {max_model_len}", row.0)]
    ModelLen {
        /// The row.
        row: RowId,
        /// The limit.
        max_model_len: usize,
        /// What it would be.
        given: usize,
    },
    /// Fewer blocks than the tokens need, or more than the longest sequence does.
    #[error("row {} holds {given} blocks, needs {needed}, may have {max_blocks}", row.0)]
    BlockTable {
        /// The row.
        row: RowId,
        /// Blocks that the step's tokens need.
        needed: usize,
        /// The limit.
        max_blocks: usize,
        /// The table's length.
        given: usize,
    },
    /// A replaced block past the end of the table.
    #[error("row {} replaces block {table_idx} of its table of {num_blocks}", row.0)]
    ReplacedBlock {
        /// The row.
        row: RowId,
        /// The place.
        table_idx: u32,
        /// The table's length.
        num_blocks: usize,
    },
    /// A block outside of the pool.
    #[error("block {block} of {num_blocks}")]
    BlockRange {
        /// The block.
        block: u32,
        /// Blocks of the pool.
        num_blocks: usize,
    },
    /// A block outside of the swap space.
    #[error("block {block} of the swap space of {num_swap_blocks}")]
    SwapBlockRange {
        /// The block.
        block: u32,
        /// The swap space.
        num_swap_blocks: usize,
    },
    /// A write to a block that another row has in its table too (found by the scripted executor).
    #[error("row {} writes block {block}, which {num_owners} rows hold", row.0)]
    SharedWrite {
        /// The row.
        row: RowId,
        /// The block.
        block: u32,
        /// How many rows hold it.
        num_owners: u32,
    },
    /// A read of what was not written, or written for other tokens (found by the scripted executor).
    #[error("row {} reads position {position} in block {block}, which holds something else", row.0)]
    ForeignRead {
        /// The row.
        row: RowId,
        /// Position in the sequence.
        position: usize,
        /// The block.
        block: u32,
    },
}
