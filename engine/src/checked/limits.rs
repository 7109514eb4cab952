//! What parameters are checked against.

use std::collections::BTreeSet;

use quire_executor::{LogitsProcessors, LogprobsMode};

/// What a model and a configuration allow.
#[derive(Clone, Debug, Default)]
pub struct ParamLimits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Log-probabilities that may be asked for.
    pub max_logprobs: usize,
    /// What they are of.
    pub logprobs_mode: LogprobsMode,
    /// Logits processors that there are.
    pub processors: LogitsProcessors,
    /// Tokens that end a text.
    pub eos: EosTokens,
}

/// Tokens that end a text: all that tokenizer, model configuration and generation configuration name, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EosTokens {
    /// Those of the tokenizer and of the model's configuration: they end an output without a stop reason.
    pub silent: BTreeSet<u32>,
    /// Those that only the generation configuration names: they are told as stop reason, as if asked for.
    pub told: BTreeSet<u32>,
}

impl EosTokens {
    /// All of them.
    pub fn all(&self) -> BTreeSet<u32> {
        self.silent.union(&self.told).copied().collect()
    }
}
