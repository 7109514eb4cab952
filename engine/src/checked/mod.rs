//! Sampling parameters after all checks.

mod checks;
mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quire_executor::RowSampling;
use quire_models::TextOptions;

pub(crate) use self::checks::{MAX_TEMPERATURE, written};
pub use self::limits::{EosTokens, ParamLimits};
use crate::OutputKind;
use crate::bad_words::BadSequences;
use crate::chat::ReasoningFormat;
use crate::output::StopReason;
use crate::structured::GrammarSource;

/// Sampling parameters that are known to be good. Only [`SamplingParams::check`](crate::SamplingParams::check) makes them.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedParams {
    row: RowSampling,
    n: u32,
    seed: Option<u64>,
    max_tokens: Option<u32>,
    stop: Vec<String>,
    include_stop_str_in_output: bool,
    text_options: Option<TextOptions>,
    bad_words: Vec<String>,
    bad_sequences: BadSequences,
    grammar: Option<Arc<GrammarSource>>,
    reasoning: Option<ReasoningFormat>,
    truncate_prompt_tokens: Option<usize>,
    skips_prefix_cache: bool,
    output_kind: OutputKind,
    /// The tokens that end the output, with what is told then.
    end_tokens: BTreeMap<u32, Option<StopReason>>,
    /// Those of them that the request named.
    stop_token_ids: BTreeSet<u32>,
}

impl CheckedParams {
    /// How the device chooses tokens, with the seed to use.
    pub fn row_sampling(&self, seed: u64) -> RowSampling {
        // Of a form, which may have end tokens in its midst, the masks say where the output may end.
        let min_tokens = if self.grammar.is_some() { 0 } else { self.row.min_tokens };
        RowSampling { seed, min_tokens, ..self.row.clone() }
    }

    /// Outputs of the request.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// The seed that was asked for.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Tokens to generate at most; none is as many as fit.
    pub fn max_tokens(&self) -> Option<u32> {
        self.max_tokens
    }

    /// Tokens before which nothing ends the output.
    pub fn min_tokens(&self) -> u32 {
        self.row.min_tokens
    }

    /// Stop strings, none of them empty.
    pub fn stop(&self) -> &[String] {
        &self.stop
    }

    /// Whether what ended the output stays in the text.
    pub fn include_stop_str_in_output(&self) -> bool {
        self.include_stop_str_in_output
    }

    /// How tokens become text; none where they do not.
    pub fn text_options(&self) -> Option<TextOptions> {
        self.text_options
    }

    /// Words that must not be generated.
    pub fn bad_words(&self) -> &[String] {
        &self.bad_words
    }

    /// Tokens of the prompt's end that are kept, where not all are.
    pub fn truncate_prompt_tokens(&self) -> Option<usize> {
        self.truncate_prompt_tokens
    }

    /// What a stream brings before the end.
    pub fn output_kind(&self) -> OutputKind {
        self.output_kind
    }

    /// Forbids sequences of tokens: those of one token by themselves, others once all but their last token have come.
    pub(crate) fn forbid(&mut self, sequences: impl IntoIterator<Item = Vec<u32>>) {
        let (single, longer): (Vec<_>, Vec<_>) =
            sequences.into_iter().partition(|sequence| sequence.len() == 1);
        self.row.logit_bias.extend(single.into_iter().flatten().map(|id| (id, f32::NEG_INFINITY)));
        self.bad_sequences = BadSequences::new(longer);
    }

    /// The fields that forbid tokens.
    pub(crate) fn forbidding_fields(&self) -> Vec<&'static str> {
        let holds_ends_back = self.row.min_tokens > 0 && !self.row.end_token_ids.is_empty();
        let fields = [
            ("allowed_token_ids", self.row.allowed_token_ids.is_some()),
            ("bad_words", !self.bad_words.is_empty()),
            ("min_tokens", holds_ends_back),
            ("structured_outputs", self.grammar.is_some()),
        ];
        fields.into_iter().filter(|(_, forbids)| *forbids).map(|(field, _)| field).collect()
    }

    /// Tokens of output that a prompt is cut for, where it is cut to what fits.
    pub(crate) fn least_room(&self, max_model_len: usize) -> usize {
        room(self.max_tokens.map(Into::into), self.row.min_tokens.into(), max_model_len)
    }

    /// The form that the output must have.
    pub(crate) fn grammar(&self) -> Option<&Arc<GrammarSource>> {
        self.grammar.as_ref()
    }

    /// How the reasoning that may come before the form is set apart.
    pub(crate) fn reasoning(&self) -> Option<ReasoningFormat> {
        self.reasoning
    }

    /// The tokens that end the output.
    pub(crate) fn end_token_ids(&self) -> impl Iterator<Item = u32> {
        self.end_tokens.keys().copied()
    }

    /// Those of them that the request named.
    pub(crate) fn stop_token_ids(&self) -> impl Iterator<Item = u32> {
        self.stop_token_ids.iter().copied()
    }

    /// Whether the request itself named a token as one that ends the output.
    pub(crate) fn is_stop_token(&self, token_id: u32) -> bool {
        self.stop_token_ids.contains(&token_id)
    }

    /// Sequences of several tokens that must not be completed.
    pub(crate) fn bad_sequences(&self) -> &BadSequences {
        &self.bad_sequences
    }

    /// Best log-probabilities that come with each token, where any do.
    pub fn logprobs(&self) -> Option<u32> {
        self.row.logprobs
    }

    /// The same for the prompt.
    pub fn prompt_logprobs(&self) -> Option<u32> {
        self.row.prompt_logprobs
    }

    /// Whether all of the prompt is computed, whatever the prefix cache has.
    pub fn skips_prefix_cache(&self) -> bool {
        self.skips_prefix_cache
    }

    /// Whether a token ends the output, and what is told then.
    pub fn ends_with(&self, token_id: u32) -> Option<Option<StopReason>> {
        self.end_tokens.get(&token_id).cloned()
    }
}

/// Tokens of output that have room behind a prompt which is cut to what fits: as many as may come, else as must, at least one. More than
/// the context would hold alone is cut itself, or refused.
pub(crate) fn room(max_tokens: Option<u64>, min_tokens: u64, max_model_len: usize) -> usize {
    let asked = usize::try_from(max_tokens.unwrap_or(min_tokens)).unwrap_or(usize::MAX);
    if asked < max_model_len { asked.max(1) } else { 1 }
}
