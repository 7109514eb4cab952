//! What a beam search is asked for.

use serde::{Deserialize, Serialize};

use crate::checked::{ParamLimits, written};
use crate::params::{ParamError, SamplingParams};

/// Parameters of a beam search. The names and meanings are those of vLLM.
///
/// At every token each beam is tried with its `2 * beam_width` most probable next tokens; those that end the text are
/// put aside as found, and of the others the `beam_width` most probable texts go on. In the end the best of all that
/// was found or is left come back, by their score: the sum of the log-probabilities of the generated tokens, over
/// `(tokens of prompt and output) ^ length_penalty`, an end token not counted.
///
/// ```
/// use quire_engine::BeamSearchParams;
///
/// let params = BeamSearchParams { length_penalty: 0.0, ..BeamSearchParams::new(4, 32) };
/// assert_eq!((params.beam_width, params.ignore_eos), (4, false));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeamSearchParams {
    /// Beams that are kept, and outputs that come back at most; at least 1, and at most half of `max_logprobs`.
    pub beam_width: u32,
    /// Tokens to generate at most, at least 1.
    pub max_tokens: u64,
    /// Whether end tokens are tokens like others.
    #[serde(default)]
    pub ignore_eos: bool,
    /// From 0 to 2. Only log-probabilities of the mode `processed_logprobs` depend on it.
    #[serde(default)]
    pub temperature: f64,
    /// What the length counts in a score: above 0 prefers long texts, below 0 short ones.
    #[serde(default = "one")]
    pub length_penalty: f64,
    /// Whether the end token stays in the text.
    #[serde(default)]
    pub include_stop_str_in_output: bool,
}

/// A beam search that may run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CheckedBeams {
    pub(crate) width: usize,
    pub(crate) length_penalty: f64,
}

impl BeamSearchParams {
    /// A search of that width and length.
    pub fn new(beam_width: u32, max_tokens: u64) -> Self {
        Self {
            beam_width,
            max_tokens,
            ignore_eos: false,
            temperature: 0.0,
            length_penalty: 1.0,
            include_stop_str_in_output: false,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that is not allowed, with its value and the rule.
    pub fn check(&self, limits: &ParamLimits) -> Result<(), ParamError> {
        self.checked(limits)?;
        self.as_sampling(limits.vocab_size).check(limits).map(drop)
    }

    /// Checks what is particular to a search. The rest is checked with [`as_sampling`](Self::as_sampling).
    pub(crate) fn checked(&self, limits: &ParamLimits) -> Result<CheckedBeams, ParamError> {
        let refuse = |field, value: String, rule: String| Err(ParamError::Value { field, value, rule });
        if !limits.logprobs_mode.is_normalized() {
            let rule = "none where logprobs_mode tells logits: a score is of log-probabilities".to_owned();
            return refuse("beam_width", self.beam_width.to_string(), rule);
        }
        let widest = limits.max_logprobs / 2;
        if self.beam_width == 0 || self.beam_width as usize > widest {
            let rule = format!("1 to {widest}, half of max_logprobs = {}", limits.max_logprobs);
            return refuse("beam_width", self.beam_width.to_string(), rule);
        }
        if !self.length_penalty.is_finite() {
            return refuse("length_penalty", written(self.length_penalty), "a finite number".to_owned());
        }
        Ok(CheckedBeams { width: self.beam_width as usize, length_penalty: self.length_penalty })
    }

    /// Refuses what a request wants beside a search and would not get: candidates are the most probable tokens of the model,
    /// whatever a grammar or a logits processor says of them.
    pub(crate) fn check_beside(params: &SamplingParams) -> Result<(), ParamError> {
        let refuse = |field, value: String| {
            Err(ParamError::NotBuilt { field, value, rule: "none beside a beam search" })
        };
        if params.structured_outputs.is_some() {
            return refuse("structured_outputs", "a form".to_owned());
        }
        match params.logits_processors.first() {
            Some(call) => refuse("logits_processors", call.name.clone()),
            None => Ok(()),
        }
    }

    /// How each beam finds its candidates. What it samples itself means nothing.
    pub(crate) fn as_sampling(&self, vocab_size: usize) -> SamplingParams {
        let num_candidates = (2 * u64::from(self.beam_width)).min(vocab_size as u64);
        SamplingParams {
            max_tokens: Some(self.max_tokens),
            ignore_eos: self.ignore_eos,
            temperature: self.temperature,
            include_stop_str_in_output: self.include_stop_str_in_output,
            logprobs: i64::try_from(num_candidates).ok(),
            seed: Some(0),
            ..SamplingParams::default()
        }
    }
}

fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use quire_executor::LogprobsMode;

    use super::*;

    fn limits() -> ParamLimits {
        ParamLimits { vocab_size: 100, max_logprobs: 20, ..ParamLimits::default() }
    }

    #[track_caller]
    fn check(edit: impl FnOnce(&mut BeamSearchParams), message: &str) {
        let mut params = BeamSearchParams::new(4, 8);
        edit(&mut params);
        assert_eq!(params.check(&limits()).unwrap_err().to_string(), message);
    }

    #[test]
    fn each_field_has_its_range() {
        check(|p| p.beam_width = 0, "beam_width is 0: expected 1 to 10, half of max_logprobs = 20");
        check(|p| p.beam_width = 11, "beam_width is 11: expected 1 to 10, half of max_logprobs = 20");
        check(|p| p.max_tokens = 0, "max_tokens is 0: expected at least 1");
        check(|p| p.temperature = -0.5, "temperature is -0.5: expected a number from 0 to 2");
        check(|p| p.length_penalty = f64::NAN, "length_penalty is NaN: expected a finite number");
        for beam_width in [1, 10] {
            let params = BeamSearchParams { length_penalty: -3.0, ..BeamSearchParams::new(beam_width, 1) };
            assert!(params.check(&limits()).is_ok());
            let row = params.as_sampling(100).check(&limits()).unwrap().row_sampling(0);
            assert_eq!(row.logprobs, Some(2 * beam_width));
        }
        let few = BeamSearchParams::new(10, 1).as_sampling(7);
        assert_eq!(few.logprobs, Some(7), "no more candidates than tokens");
    }

    #[test]
    fn logits_are_no_scores() {
        let limits = ParamLimits { logprobs_mode: LogprobsMode::RawLogits, ..limits() };
        assert_eq!(BeamSearchParams::new(4, 8).check(&limits).unwrap_err().field(), "beam_width");
    }

    #[test]
    fn the_defaults_are_those_of_vllm() {
        let read = serde_json::from_str::<BeamSearchParams>;
        assert_eq!(read(r#"{"beam_width": 3, "max_tokens": 5}"#).unwrap(), BeamSearchParams::new(3, 5));
        for wrong in
            [r#"{"beam_width": 3}"#, r#"{"max_tokens": 3}"#, r#"{"beam_width": -1, "max_tokens": 5}"#]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read(r#"{"beam_width": 3, "max_tokens": 5, "n": 2}"#).is_err(), "no field is passed over");
    }
}
