//! What a step gave.

use serde::{Deserialize, Serialize};

use crate::RowId;

/// The results of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepOutput {
    /// Number of the step.
    pub step: u64,
    /// One entry for each planned row, in the batch's order.
    pub rows: Vec<RowOutput>,
    /// Transfers of this batch and of earlier ones that are done, each named once. They end in the order in which they
    /// were asked for.
    pub transfers_done: Vec<u64>,
    /// How long the device worked on it.
    pub device_time_us: u64,
    /// How long the device had nothing to do between the step before and this one, where it has a clock and another
    /// step was open when this one came; else 0.
    pub device_idle_us: u64,
}

/// The results of one row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowOutput {
    /// Which row.
    pub row: RowId,
    /// The epoch that it was planned under.
    pub epoch: u32,
    /// The sampled tokens: one where the row was asked to sample, else none.
    pub token_ids: Vec<u32>,
    /// Why the row gave no token though it was asked to. Rows beside it are not concerned; what it computes from
    /// then on means nothing.
    pub fault: Option<RowFault>,
    /// For each sampled token, where asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// For each prompt token that this step's logits predict, where asked for: entry `i` of the prompt's list is
    /// about token `i + 1`.
    pub prompt_logprobs: Vec<TokenLogprobs>,
}

/// What keeps a row from having a next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RowFault {
    /// The model gave NaN or plus infinity for a token, or minus infinity for all of them.
    #[error(
        "the model gave no finite logits for position {position}: its numbers overflow or its weights are broken"
    )]
    NoFiniteLogit {
        /// Where the token would stand in its sequence.
        position: u32,
    },
    /// The same of a row whose logits were edited on the host.
    #[error(
        "no finite logits are left for position {position} by its logits processors: one panicked, wrote a NaN or an \
         infinity, or forbade every token"
    )]
    Processors {
        /// Where the token would stand in its sequence.
        position: u32,
    },
}

/// The log-probability of a token, and those of the best ones at its place; of which logits, and whether they are the
/// logits themselves, is said by [`LogprobsMode`](crate::LogprobsMode).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The token.
    pub token_id: u32,
    /// Its natural log-probability.
    pub logprob: f32,
    /// How many tokens have one at least as high; 1 for the best.
    pub rank: u32,
    /// The best ones, the highest first.
    pub top: Vec<(u32, f32)>,
}
