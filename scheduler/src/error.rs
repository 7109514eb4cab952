//! What a caller can get wrong, and what must not happen.

use quire_kvcache::{NoBlocks, StepId, TransferId};

use crate::ids::SeqId;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Any error of this crate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A sequence was refused on arrival.
    #[error(transparent)]
    Add(#[from] AddError),
    /// A sequence could not be forked.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// A sequence could not be held.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// A step could not be planned: a bug.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Results do not belong to the step they came for.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// No policy of that name.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
}

/// A field of [`SchedulerConfig`](crate::SchedulerConfig) out of its range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} is {given}, expected {expected}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub given: u32,
    /// The values that work.
    pub expected: String,
}

/// Why a sequence was refused on arrival. It could never have run, so that nothing was queued.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// There is nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No output is asked for.
    #[error("max_output_tokens is 0, expected at least 1")]
    NoOutput,
    /// The prompt leaves no room for one token.
    #[error(
        "the prompt has {num_tokens} tokens, the limit with one output token is max_model_len = {max_model_len}"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        num_tokens: usize,
        /// The limit on prompt and output together.
        max_model_len: u32,
    },
    /// The prompt and one token do not fit into the pool, even alone.
    #[error(
        "the prompt of {num_tokens} tokens and one output token need {need} blocks of the kv cache, {have} present"
    )]
    NeverFits {
        /// Tokens of the prompt.
        num_tokens: u32,
        /// Blocks needed.
        need: u32,
        /// Blocks that a prompt may ever have.
        have: u32,
    },
}

/// Why a sequence could not be forked. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The parent does not hold blocks now.
    #[error("sequence {0} is not running")]
    NotRunning(SeqId),
    /// `max_num_seqs` sequences run already.
    #[error("{limit} sequences run already, which is max_num_seqs")]
    SeqLimit {
        /// The limit.
        limit: u32,
    },
    /// Admission is lowered after preemptions, for forks as for others.
    #[error("at most {limit} sequences run, to which admission is lowered after preemptions")]
    Thrashing {
        /// The limit for now.
        limit: u32,
    },
    /// In the mode `Guaranteed`, or while one runs that gave way twice: there is no room for all tokens that the child may
    /// ever have.
    #[error("no room for a fork: {0}")]
    NoBlocks(NoBlocks),
    /// The fork would be at a token that the parent does not have.
    #[error("fork after {given} tokens, expected at least {min} and at most {max}")]
    OutOfRange {
        /// Where the fork was to be.
        given: u32,
        /// Tokens of the prompt.
        min: u32,
        /// Tokens known.
        max: u32,
    },
    /// The last token is the prompt's, or has been computed.
    #[error("the last token of sequence {0} is the prompt's, or a step computes it already")]
    Computed(SeqId),
    /// The child has no output left to produce.
    #[error("max_output_tokens leaves nothing to sample after {given} tokens")]
    NoOutput {
        /// Where the fork was to be.
        given: u32,
    },
}

/// Why a sequence could not be held. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// Only what waits can be held.
    #[error("sequence {0} is running")]
    Running(SeqId),
    /// No unfinished sequence has this id.
    #[error("sequence {0} is unknown")]
    Unknown(SeqId),
}

/// A step that could not be planned. It is a bug of this crate: report it with the dump.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// There is work, no step is open, and yet nothing could be planned.
    #[error("internal error: step {step} has work and plans nothing\n{dump}")]
    Stuck {
        /// The step.
        step: StepId,
        /// Queues, blocks and refusals.
        dump: String,
    },
}

/// Results that do not belong to the step they were given for. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Steps are committed in the order they were planned.
    #[error("step {given} was committed, the oldest open step is {expected:?}")]
    OutOfOrder {
        /// The step given.
        given: StepId,
        /// The step that is next, if any is open.
        expected: Option<StepId>,
    },
    /// A transfer was said to be done that is not open.
    #[error("transfer {} is not open", .0.0)]
    UnknownTransfer(TransferId),
    /// A row that sampled has no result.
    #[error("no result for sequence {0}, which sampled in this step")]
    Missing(SeqId),
    /// A result has no row that sampled, or is out of the order of rows, or carries another epoch.
    #[error("unexpected result for sequence {0}")]
    Unexpected(SeqId),
    /// A row sampled none or too many tokens.
    #[error("{given} tokens for sequence {seq}, expected 1 to {max}, or fewer with a finish")]
    NumTokens {
        /// The sequence.
        seq: SeqId,
        /// Tokens given.
        given: usize,
        /// Tokens that the row may bring.
        max: u32,
    },
}

/// A policy name that nobody registered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown scheduling policy `{name}`, known are: {}", known.join(", "))]
pub struct UnknownPolicy {
    /// The name asked for.
    pub name: String,
    /// The names there are.
    pub known: Vec<String>,
}
