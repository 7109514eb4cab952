//! How a prompt is continued, as a user writes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::OutputKind;
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
    /// Keeps the last so many tokens of the prompt; -1 as many as the context holds beside a token of output.
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
    /// Always the best token, `max_tokens` of them at most.
    pub fn greedy(max_tokens: u64) -> Self {
        Self { temperature: 0.0, max_tokens: Some(max_tokens), ..Self::default() }
    }

    /// These parameters with the fields of a JSON object in place of their own. `null` counts as absent.
    ///
    /// # Errors
    ///
    /// [`ParamError::Unknown`], [`ParamError::Type`]; [`ParamError::NotBuilt`] for a field of vLLM's that has no code yet.
    pub fn with_json(&self, given: &serde_json::Map<String, serde_json::Value>) -> Result<Self, ParamError> {
        let Ok(serde_json::Value::Object(mut all)) = serde_json::to_value(self) else {
            unreachable!("a struct of plain fields becomes an object");
        };
        for (field, value) in given.iter().filter(|(_, value)| !value.is_null()) {
            let Some(known) = FIELDS.iter().find(|known| *known == field) else {
                not_built(field, value)?;
                continue;
            };
            let value = normalized(field, value);
            let alone = serde_json::Map::from_iter([(field.clone(), value.clone())]);
            serde_json::from_value::<Self>(alone.into()).map_err(|source| ParamError::Type {
                field: known,
                value: value.to_string(),
                rule: source.to_string(),
            })?;
            all.insert(field.clone(), value);
        }
        serde_json::from_value(all.into()).map_err(|source| ParamError::Type {
            field: "sampling parameters",
            value: String::new(),
            rule: source.to_string(),
        })
    }

    /// The names of the fields, as JSON has them.
    pub fn field_names() -> &'static [&'static str] {
        FIELDS
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
    #[error("{field} is {value}: {rule}")]
    Type {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        rule: String,
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
            Self::Value { field, .. } | Self::Type { field, .. } | Self::NotBuilt { field, .. } => field,
            Self::Unknown { field } => field,
        }
    }
}

const FIELDS: &[&str] = &[
    "n",
    "best_of",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "logprobs",
    "prompt_logprobs",
    "skip_special_tokens",
    "detokenize",
    "spaces_between_special_tokens",
    "bad_words",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "output_kind",
    "structured_outputs",
    "logits_processors",
];

/// Fields that today's vLLM has and for which there is no code yet, with what works.
const NOT_BUILT: &[(&str, &str)] = &[
    ("thinking_token_budget", "none"),
    ("repetition_detection", "none"),
    ("logprob_token_ids", "none, and logprobs"),
    ("flat_logprobs", "false"),
    ("skip_reading_prefix_cache", "false, and a cache_salt of its own"),
    ("extra_args", "none"),
];

/// What a field is refused with that is not one of ours; where it asks for nothing, it is passed over.
fn not_built(field: &str, value: &serde_json::Value) -> Result<(), ParamError> {
    match NOT_BUILT.iter().find(|(known, _)| *known == field) {
        None => Err(ParamError::Unknown { field: field.to_owned() }),
        Some(_) if *value == serde_json::Value::Bool(false) => Ok(()),
        Some((field, rule)) => Err(ParamError::NotBuilt { field, value: value.to_string(), rule }),
    }
}

/// `logprobs: true` is 1, `false` is none at all, as OpenAI's chat requests have it.
fn normalized(field: &str, value: &serde_json::Value) -> serde_json::Value {
    match (field, value.as_bool()) {
        ("logprobs" | "prompt_logprobs", Some(true)) => 1.into(),
        ("logprobs" | "prompt_logprobs", Some(false)) => serde_json::Value::Null,
        _ => value.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<SamplingParams, ParamError> {
        SamplingParams::default()
            .with_json(serde_json::from_str::<serde_json::Value>(json).unwrap().as_object().unwrap())
    }

    #[test]
    fn the_listed_fields_are_those_of_the_struct() {
        let fields = serde_json::to_value(SamplingParams::default()).unwrap();
        let mut fields: Vec<_> = fields.as_object().unwrap().keys().cloned().collect();
        let mut listed = FIELDS.to_vec();
        fields.sort();
        listed.sort();
        assert_eq!(fields, listed);
    }

    #[test]
    fn null_is_absent_and_json_forms_are_read() {
        let params =
            parse(r#"{"max_tokens": null, "stop": "a", "logprobs": true, "logit_bias": {"5": 1}}"#).unwrap();
        assert_eq!(params.max_tokens, Some(16));
        assert_eq!((params.stop, params.logprobs), (vec!["a".to_owned()], Some(1)));
        assert_eq!(params.logit_bias[&5], 1.0);
    }

    #[test]
    fn a_wrong_type_and_an_unknown_field_are_named() {
        assert_eq!(parse(r#"{"top_k": 1.5}"#).unwrap_err().field(), "top_k");
        assert_eq!(parse(r#"{"max_tokens": -1}"#).unwrap_err().field(), "max_tokens");
        assert_eq!(
            parse(r#"{"max_token": 1}"#).unwrap_err().to_string(),
            "max_token is not a sampling parameter"
        );
    }
}
