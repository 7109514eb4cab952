//! How a prompt is continued, as a user writes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::OutputKind;
use crate::checked::room;
use crate::logits_processors::LogitsProcessorCall;
use crate::structured::StructuredOutputs;

/// Sampling parameters. The names and meanings are those of vLLM; [`check`](Self::check) says what is allowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Outputs of the request; at least 1, and 1 where the temperature is 0. Output `i` of a seed is the same for any `n`.
    pub n: u32,
    /// Candidates of which the best `n` are returned: only `n` itself is allowed.
    pub best_of: Option<u32>,
    /// From 0 (always the best token) to 2. What is below 1e-5 is 0, what is below 0.01 is 0.01.
    pub temperature: f64,
    /// Keeps the smallest set of tokens with this mass; in (0, 1], 1 is off.
    pub top_p: f64,
    /// Keeps the best so many tokens; 0 and -1 are off.
    pub top_k: i64,
    /// Keeps tokens at least this probable relative to the best; in [0, 1], 0 is off.
    pub min_p: f64,
    /// Makes the random choices repeatable; none and -1 draw one, which is recorded in the logs.
    pub seed: Option<i64>,
    /// Subtracted from the logits of tokens that were generated; in [-2, 2].
    pub presence_penalty: f64,
    /// Subtracted once for each time that a token was generated; in [-2, 2].
    pub frequency_penalty: f64,
    /// Divides (positive) or multiplies (negative) the logits of all tokens seen; above 0, 1 is off.
    pub repetition_penalty: f64,
    /// Added to the logits of tokens, clamped to ±100.
    pub logit_bias: BTreeMap<u32, f64>,
    /// Tokens to generate at most, at least 1; none is as many as fit.
    pub max_tokens: Option<u64>,
    /// Tokens before which nothing ends the output; at most `max_tokens`.
    pub min_tokens: u64,
    /// Texts that end the output, none of them empty. The earliest in the text counts, the first listed among equals.
    #[serde(deserialize_with = "one_or_many")]
    pub stop: Vec<String>,
    /// Tokens that end the output.
    pub stop_token_ids: Vec<u32>,
    /// Whether end tokens are tokens like others.
    pub ignore_eos: bool,
    /// Whether what ended the output stays in the text.
    pub include_stop_str_in_output: bool,
    /// How many of the best log-probabilities come with each token (0: only its own), at most `max_logprobs`; -1 is
    /// the whole vocabulary.
    pub logprobs: Option<i64>,
    /// The same for the tokens of the prompt. Such a request reads nothing from the prefix cache.
    pub prompt_logprobs: Option<i64>,
    /// Whether nothing is read from the prefix cache, so that all of the prompt is computed. What is computed serves nobody
    /// else then.
    pub skip_reading_prefix_cache: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Whether tokens are turned into text at all. Stop strings need it.
    pub detokenize: bool,
    /// Whether an added token that follows another is set off by a space, where the tokenizer puts spaces between tokens.
    pub spaces_between_special_tokens: bool,
    /// Words that must not be generated, as the beginning of a word or within one: of each, with and without a space in
    /// front, the last token is forbidden where the others have just been generated.
    pub bad_words: Vec<String>,
    /// The only tokens that may be generated, at least one.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Keeps the last so many tokens of the prompt; -1 as many as the context holds beside `max_tokens`, or a
    /// token of output where that is none.
    pub truncate_prompt_tokens: Option<i64>,
    /// What a stream brings before the end.
    pub output_kind: OutputKind,
    /// The form that the output must have. An output that has come to its end ends, whatever `min_tokens` and `ignore_eos`
    /// say, without a token for it.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Code registered with the engine that edits the logits on the host, each name once. They run in the order in which
    /// they were registered, before biases and penalties.
    pub logits_processors: Vec<LogitsProcessorCall>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            n: 1,
            best_of: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            max_tokens: Some(16),
            min_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            include_stop_str_in_output: false,
            logprobs: None,
            prompt_logprobs: None,
            skip_reading_prefix_cache: false,
            skip_special_tokens: true,
            detokenize: true,
            spaces_between_special_tokens: true,
            bad_words: Vec::new(),
            allowed_token_ids: None,
            truncate_prompt_tokens: None,
            output_kind: OutputKind::default(),
            structured_outputs: None,
            logits_processors: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// Tokens of a context that are left for the output where `truncate_prompt_tokens` is -1.
    pub fn room_within(&self, max_model_len: usize) -> usize {
        room(self.max_tokens, self.min_tokens, max_model_len)
    }

    /// What is left of them where nothing is generated: what the prompt's log-probabilities are.
    pub(crate) fn of_prompt_alone(&self) -> Self {
        Self {
            n: 1,
            best_of: None,
            max_tokens: Some(1),
            min_tokens: 0,
            logprobs: None,
            structured_outputs: None,
            allowed_token_ids: None,
            bad_words: Vec::new(),
            ..self.clone()
        }
    }

    /// Always the best token, `max_tokens` of them at most.
    pub fn greedy(max_tokens: u64) -> Self {
        Self { temperature: 0.0, max_tokens: Some(max_tokens), ..Self::default() }
    }
}

/// Why a sampling parameter was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamError {
    /// A value that is not allowed.
    #[error("{field} is {value}: expected {rule}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        rule: String,
    },
    /// A value of another type than the field has.
    #[error("{field} is {value}: expected {rule}")]
    Type {
        /// The field.
        field: &'static str,
        /// Its value, the beginning of it where it is long.
        value: String,
        /// What is allowed.
        rule: String,
    },
    /// A value of many parts, one of which is wrong.
    #[error("{field}: {reason}")]
    Form {
        /// The field.
        field: &'static str,
        /// What is wrong, and with which part.
        reason: String,
    },
    /// A field that is right, for which there is no code yet.
    #[error("{field} = {value} is not built yet: expected {rule}")]
    NotBuilt {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What works today.
        rule: &'static str,
    },
    /// A field that does not exist.
    #[error("{field} is not a sampling parameter")]
    Unknown {
        /// Its name.
        field: String,
    },
}

impl ParamError {
    /// The field that was refused.
    pub fn field(&self) -> &str {
        match self {
            Self::Value { field, .. }
            | Self::Type { field, .. }
            | Self::Form { field, .. }
            | Self::NotBuilt { field, .. } => field,
            Self::Unknown { field } => field,
        }
    }
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a string or a list of strings")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    })
}
