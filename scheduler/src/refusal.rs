//! Why something did not happen.

use quire_kvcache::{NoBlocks, SwapFull};

use crate::hold::HoldReason;

/// Why the step builder refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The pool has not enough blocks now.
    #[error("{0}")]
    NoBlocks(NoBlocks),
    /// The step's tokens are spent.
    #[error("{need} tokens wanted, {left} left of the token budget")]
    TokenBudget {
        /// The least that was wanted.
        need: u32,
        /// What is left.
        left: u32,
    },
    /// `max_num_seqs` sequences run already.
    #[error("{limit} sequences run, which is max_num_seqs")]
    SeqLimit {
        /// The limit.
        limit: u32,
    },
    /// So many prompts are computed in part already, and this one would not be computed to its end in this step.
    #[error("{limit} prompts are computed in part, which is max_num_partial_prefills")]
    PartialPrefills {
        /// The limit.
        limit: u32,
    },
    /// The sequence has been granted tokens, or was preempted, in this very step.
    #[error("already planned in this step")]
    AlreadyPlanned,
    /// All it may generate is in open steps.
    #[error("waits for the commit of an open step")]
    AwaitsCommit,
    /// The sequence has come in first: it is never a victim, so that at least one can always finish.
    #[error("the oldest running sequence is never preempted")]
    Oldest,
    /// No tokens were asked for.
    #[error("a grant is of at least one token")]
    NoTokens,
    /// The sequence is not waiting.
    #[error("not waiting")]
    NotWaiting,
    /// The sequence is held.
    #[error("held: {0}")]
    Held(HoldReason),
    /// The sequence is not running.
    #[error("not running")]
    NotRunning,
    /// No unfinished sequence has this id.
    #[error("unknown sequence")]
    Unknown,
    /// The blocks are on their way to the host or back.
    #[error("its blocks are on their way to the host or back")]
    SwapInFlight,
    /// The swap space has no room: preempt by recompute.
    #[error("{0}")]
    SwapFull(SwapFull),
    /// Nothing is computed yet that could be moved.
    #[error("nothing is computed that could be moved")]
    NothingToSwap,
    /// The sequence is not on the host.
    #[error("not swapped")]
    NotSwapped,
    /// So many sequences run as the scheduler allows for now: work was lost to preemptions.
    #[error("admission is lowered to {limit} sequences after preemptions")]
    Thrashing {
        /// The limit for now.
        limit: u32,
    },
}
