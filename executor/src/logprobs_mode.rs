//! What is told of tokens where log-probabilities are asked for.

use quire_kernels::TokenValues;

/// Of which logits the values of tokens are, and whether they are log-probabilities. The names are those of vLLM.
///
/// Tokens of a prompt are not drawn from anything, so their values are of the raw logits in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The logits as the model gave them.
    RawLogits,
    /// Their log-probabilities.
    #[default]
    RawLogprobs,
    /// The logits that the token was drawn from: after bias, forbidden tokens, penalties, temperature and filters. A
    /// greedy row has no temperature and no filters. What cannot be drawn is minus infinity.
    ProcessedLogits,
    /// The log-probabilities of those.
    ProcessedLogprobs,
}

impl LogprobsMode {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::RawLogits, Self::RawLogprobs, Self::ProcessedLogits, Self::ProcessedLogprobs];

    /// Its name in settings: `raw_logprobs` and so on.
    pub fn name(self) -> &'static str {
        match self {
            Self::RawLogits => "raw_logits",
            Self::RawLogprobs => "raw_logprobs",
            Self::ProcessedLogits => "processed_logits",
            Self::ProcessedLogprobs => "processed_logprobs",
        }
    }

    /// Whether the values are log-probabilities.
    pub fn is_normalized(self) -> bool {
        matches!(self, Self::RawLogprobs | Self::ProcessedLogprobs)
    }

    /// Whether they are of the logits after all edits.
    pub(crate) fn is_processed(self) -> bool {
        matches!(self, Self::ProcessedLogits | Self::ProcessedLogprobs)
    }

    /// What the kernels are asked for.
    pub(crate) fn values(self) -> TokenValues {
        if self.is_normalized() { TokenValues::Logprobs } else { TokenValues::Logits }
    }
}
