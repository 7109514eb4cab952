//! `generation_config.json`: how the model's makers would have it sampled.

use serde_json::{Map, Value};

use super::ConfigError;
use super::faults::Faults;
use super::fields::Fields;

/// The defaults of `generation_config.json`; what the file leaves out is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a text. They join those of `config.json` and of the tokenizer, never replace them.
    pub eos_token_ids: Vec<u32>,
    /// Softmax temperature.
    pub temperature: Option<f64>,
    /// Nucleus mass.
    pub top_p: Option<f64>,
    /// Candidates kept.
    pub top_k: Option<usize>,
    /// Least probability relative to the best.
    pub min_p: Option<f64>,
    /// Divides the logits of what was seen.
    pub repetition_penalty: Option<f64>,
    /// Tokens to write at most.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads the object of a `generation_config.json`.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the field.
    pub fn from_json(config: &Map<String, Value>) -> Result<Self, ConfigError> {
        let (read, faults) = Self::survey(config);
        faults.into_iter().next().map_or(Ok(read), Err)
    }

    /// The same, with all that is wrong, and what can be read in spite of it.
    pub(crate) fn survey(config: &Map<String, Value>) -> (Self, Vec<ConfigError>) {
        let faults = Faults::default();
        let fields = Fields::new(config, &faults);
        let read = Self {
            eos_token_ids: fields.token_ids("eos_token_id"),
            temperature: fields.number("temperature"),
            top_p: fields.number("top_p"),
            top_k: fields.size("top_k"),
            min_p: fields.number("min_p"),
            repetition_penalty: fields.number("repetition_penalty"),
            max_new_tokens: fields.size("max_new_tokens"),
        };
        (read, faults.into_vec())
    }
}
