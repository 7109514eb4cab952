//! What a request cost, in tokens.

use serde::Serialize;

/// The `usage` object of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Shown where `--enable-prompt-tokens-details` is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptTokensDetails {
    pub(crate) cached_tokens: u64,
}

impl Usage {
    /// Prompt tokens that were counted before the first one was generated.
    pub(crate) fn of_prompt(prompt_tokens: u64) -> Self {
        Self { prompt_tokens, total_tokens: prompt_tokens, ..Self::default() }
    }

    /// Counts tokens that were generated.
    pub(crate) fn generated(&mut self, tokens: u64) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Counts prompt tokens that the prefix cache had.
    pub(crate) fn cached(&mut self, tokens: u64) {
        self.prompt_tokens_details.get_or_insert_default().cached_tokens += tokens;
    }
}
