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
    /// Defaults that cannot be read. They are not heeded: a request can say them.
    pub unread: Vec<ConfigError>,
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

    /// The same, with all that makes the file useless, and what can be read in spite of it.
    pub(crate) fn survey(config: &Map<String, Value>) -> (Self, Vec<ConfigError>) {
        let (faults, unread) = (Faults::default(), Faults::default());
        let defaults = Fields::new(config, &unread);
        // Some files say 50.0, and some -1 for "all".
        let count =
            |field| defaults.number(field).filter(|&number| number >= 0.0).map(|number| number as usize);
        let read = Self {
            eos_token_ids: Fields::new(config, &faults).token_ids("eos_token_id"),
            temperature: defaults.number("temperature"),
            top_p: defaults.number("top_p"),
            top_k: count("top_k"),
            min_p: defaults.number("min_p"),
            repetition_penalty: defaults.number("repetition_penalty"),
            max_new_tokens: count("max_new_tokens"),
            unread: Vec::new(),
        };
        (Self { unread: unread.into_vec(), ..read }, faults.into_vec())
    }
}
