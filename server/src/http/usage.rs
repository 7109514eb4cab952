//! What a request cost, in tokens.

use quire_engine::RequestOutput;
use serde::Serialize;

/// The `usage` object of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) prompt_tokens_details: Option<PromptTokensDetails>,
    /// Whether the details are told once they are known.
    #[serde(skip)]
    has_details: bool,
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

    /// The same, with details in the end where they are wanted.
    pub(crate) fn with_details(self, has_details: bool) -> Self {
        Self { has_details, ..self }
    }

    /// Counts tokens that were generated.
    pub(crate) fn generated(&mut self, tokens: u64) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Counts prompt tokens that the prefix cache had.
    pub(crate) fn cached(&mut self, tokens: u64) {
        if self.has_details {
            self.prompt_tokens_details.get_or_insert_default().cached_tokens += tokens;
        }
    }

    /// Counts the whole of an output.
    pub(crate) fn whole(&mut self, output: &RequestOutput) {
        self.generated(output.outputs.iter().map(|one| one.token_ids.len() as u64).sum());
        self.cached(output.num_cached_tokens.into());
    }
}
