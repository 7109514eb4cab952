//! What comes back from a step, and what the scheduler makes of it.

use quire_kvcache::StepId;

use crate::ids::{Epoch, SeqId};
use crate::sequence::{FinishReason, FinishedSequence};

/// What a row that samples brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceResult<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// The row's epoch.
    pub epoch: Epoch,
    /// The sampled token. Fewer tokens are allowed with a finish (a stop token that is not to be kept).
    pub tokens: &'a [u32],
    /// Whether the sequence ends here, as the engine decided. The scheduler itself ends it as `Length`.
    pub finish: Option<FinishReason>,
}

/// What a commit did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitReport {
    /// The step.
    pub step: StepId,
    /// Sequences whose results counted, with the number of tokens taken over from each, in the order of rows. What is
    /// not listed was dropped: it is to be sampled again, or its sequence has ended.
    pub accepted: Vec<(SeqId, u32)>,
    /// Sequences that ended with this step. Their blocks are given up already.
    pub finished: Vec<FinishedSequence>,
    /// Rows whose results were dropped: of an earlier epoch, or past a finish.
    pub num_dropped: u32,
}
