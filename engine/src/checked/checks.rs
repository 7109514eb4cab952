//! The checks of sampling parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quire_executor::RowSampling;
use quire_models::TextOptions;

use super::{CheckedParams, ParamLimits};
use crate::bad_words::BadSequences;
use crate::logits_processors;
use crate::output::StopReason;
use crate::params::{ParamError, SamplingParams};
use crate::structured::{GrammarSource, StructuredOutputs};

/// What is below this is greedy.
const GREEDY_BELOW: f64 = 1e-5;
/// What is above greedy and below this is raised to it, since logits divided by less overflow.
const LEAST_TEMPERATURE: f64 = 0.01;
pub(crate) const MAX_TEMPERATURE: f64 = 2.0;
const MAX_PENALTY: f64 = 2.0;
/// What repetition penalties are brought into: a logit divided by less, or multiplied by more, overflows 32 bits, and a row of
/// such logits has no best token.
const REPETITION_PENALTIES: (f64, f64) = (1e-30, 1e30);
const MAX_BIAS: f64 = 100.0;
const MAX_OUTPUTS: u32 = 16384;
/// Stop strings are looked for behind every token.
const MAX_STOPS: usize = 1024;
const MAX_BAD_WORDS: usize = 16384;
/// Bytes of all stop strings together, and of all bad words, which are tokenized.
const MAX_LIST_BYTES: usize = 256 << 10;

impl SamplingParams {
    /// Checks every field, in the order in which a reader would.
    ///
    /// # Errors
    ///
    /// The first field that is not allowed or not built, with its value and the rule.
    pub fn check(&self, limits: &ParamLimits) -> Result<CheckedParams, ParamError> {
        self.check_outputs()?;
        self.check_lengths()?;
        let mut row = self.check_distribution(limits)?;
        (row.presence_penalty, row.frequency_penalty, row.repetition_penalty) = self.check_penalties()?;
        row.logit_bias = self.check_bias(limits)?;
        row.allowed_token_ids = self.check_allowed(limits)?;
        row.processors = logits_processors::check(&self.logits_processors, &limits.processors)?;
        row.logprobs = check_logprobs("logprobs", self.logprobs, limits)?;
        row.prompt_logprobs = check_logprobs("prompt_logprobs", self.prompt_logprobs, limits)?;
        let end_tokens = self.end_tokens(limits)?;
        row.end_token_ids = end_tokens.keys().copied().collect();
        row.min_tokens = u32::try_from(self.min_tokens).unwrap_or(u32::MAX);
        Ok(CheckedParams {
            row,
            n: self.n,
            seed: self.seed.filter(|&seed| seed != -1).map(|seed| seed as u64),
            max_tokens: self.max_tokens.map(|max| u32::try_from(max).unwrap_or(u32::MAX)),
            stop: self.check_stop()?,
            include_stop_str_in_output: self.include_stop_str_in_output,
            text_options: self.text_options(),
            bad_words: self.check_bad_words()?,
            bad_sequences: BadSequences::default(),
            grammar: self.check_form()?,
            reasoning: self.structured_outputs.as_ref().and_then(|form| form.reasoning),
            truncate_prompt_tokens: self.check_truncation()?,
            skips_prefix_cache: self.skip_reading_prefix_cache || self.prompt_logprobs.is_some(),
            output_kind: self.output_kind,
            end_tokens,
            stop_token_ids: self.stop_token_ids.iter().copied().collect(),
        })
    }

    fn check_outputs(&self) -> Result<(), ParamError> {
        if !(1..=MAX_OUTPUTS).contains(&self.n) {
            return refuse("n", self.n, format!("1 to {MAX_OUTPUTS}"));
        }
        if let Some(best_of) = self.best_of.filter(|&best_of| best_of != self.n) {
            return refuse("best_of", best_of, format!("none, or n = {}", self.n));
        }
        if self.n > 1 && self.temperature < GREEDY_BELOW {
            return refuse("n", self.n, "1 where the temperature is 0, since all outputs would be equal");
        }
        Ok(())
    }

    fn check_lengths(&self) -> Result<(), ParamError> {
        match self.max_tokens {
            Some(0) => refuse("max_tokens", 0, "at least 1"),
            Some(max) if self.min_tokens > max => {
                refuse("min_tokens", self.min_tokens, format!("at most max_tokens = {max}"))
            }
            _ => Ok(()),
        }
    }

    /// Temperature and what cuts the distribution.
    fn check_distribution(&self, limits: &ParamLimits) -> Result<RowSampling, ParamError> {
        if !(0.0..=MAX_TEMPERATURE).contains(&self.temperature) {
            return refuse("temperature", written(self.temperature), "a number from 0 to 2");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", written(self.top_p), "above 0, at most 1");
        }
        if self.top_k < -1 {
            return refuse("top_k", self.top_k, "at least 1, or 0 or -1 for all tokens");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", written(self.min_p), "a number from 0 to 1");
        }
        if self.temperature < GREEDY_BELOW {
            return Ok(RowSampling::default());
        }
        if self.temperature < LEAST_TEMPERATURE {
            tracing::warn!(
                target: "quire::engine",
                "temperature {} is raised to {LEAST_TEMPERATURE}: less makes logits overflow",
                self.temperature
            );
        }
        let top_k = usize::try_from(self.top_k).unwrap_or(0);
        Ok(RowSampling {
            temperature: self.temperature.max(LEAST_TEMPERATURE) as f32,
            top_k: if top_k < limits.vocab_size { top_k as u32 } else { 0 },
            // The least number above 0 still keeps the best token.
            top_p: (self.top_p as f32).max(f32::MIN_POSITIVE),
            min_p: self.min_p as f32,
            ..RowSampling::default()
        })
    }

    fn check_penalties(&self) -> Result<(f32, f32, f32), ParamError> {
        let penalties =
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        for (field, value) in penalties {
            if !(-MAX_PENALTY..=MAX_PENALTY).contains(&value) {
                return refuse(field, written(value), "a number from -2 to 2");
            }
        }
        let repetition = self.repetition_penalty;
        if !(repetition > 0.0 && repetition.is_finite()) {
            return refuse("repetition_penalty", written(repetition), "a number above 0");
        }
        let (least, most) = REPETITION_PENALTIES;
        let repetition = repetition.clamp(least, most) as f32;
        Ok((self.presence_penalty as f32, self.frequency_penalty as f32, repetition))
    }

    fn check_bias(&self, limits: &ParamLimits) -> Result<Vec<(u32, f32)>, ParamError> {
        let check = |(&token_id, &bias): (&u32, &f64)| {
            check_token_id("logit_bias", token_id, limits)?;
            if bias.is_nan() {
                return refuse("logit_bias", format!("NaN for token {token_id}"), "numbers");
            }
            Ok((token_id, bias.clamp(-MAX_BIAS, MAX_BIAS) as f32))
        };
        self.logit_bias.iter().map(check).collect()
    }

    /// The tokens that are allowed, each once.
    fn check_allowed(&self, limits: &ParamLimits) -> Result<Option<Vec<u32>>, ParamError> {
        let Some(allowed) = &self.allowed_token_ids else { return Ok(None) };
        if allowed.is_empty() {
            return refuse("allowed_token_ids", "[]", "at least one token");
        }
        allowed.iter().try_for_each(|&id| check_token_id("allowed_token_ids", id, limits))?;
        let allowed: BTreeSet<u32> = allowed.iter().copied().collect();
        Ok(Some(allowed.into_iter().collect()))
    }

    fn check_form(&self) -> Result<Option<Arc<GrammarSource>>, ParamError> {
        Ok(self.structured_outputs.as_ref().map(StructuredOutputs::check).transpose()?.map(Arc::new))
    }

    fn check_bad_words(&self) -> Result<Vec<String>, ParamError> {
        if self.bad_words.iter().any(String::is_empty) {
            return refuse("bad_words", format!("{:?}", self.bad_words), "no empty word");
        }
        check_list("bad_words", &self.bad_words, MAX_BAD_WORDS)?;
        Ok(self.bad_words.clone())
    }

    /// The prompt's tokens that are kept; -1 keeps what the context holds beside `max_tokens`.
    fn check_truncation(&self) -> Result<Option<usize>, ParamError> {
        match self.truncate_prompt_tokens {
            Some(given) if given == 0 || given < -1 => refuse(
                "truncate_prompt_tokens",
                given,
                "at least 1, or -1 for as many as the context holds beside max_tokens",
            ),
            given => Ok(given.map(|given| usize::try_from(given).unwrap_or(usize::MAX))),
        }
    }

    fn text_options(&self) -> Option<TextOptions> {
        self.detokenize.then_some(TextOptions {
            skip_special_tokens: self.skip_special_tokens,
            spaces_between_special_tokens: self.spaces_between_special_tokens,
        })
    }

    fn check_stop(&self) -> Result<Vec<String>, ParamError> {
        if !self.detokenize && !self.stop.is_empty() {
            return refuse(
                "stop",
                format!("{:?}", self.stop),
                "none where detokenize is false: there is no text to search",
            );
        }
        if self.stop.iter().any(String::is_empty) {
            return refuse("stop", format!("{:?}", self.stop), "no empty string");
        }
        check_list("stop", &self.stop, MAX_STOPS)?;
        Ok(self.stop.clone())
    }

    /// What ends the output. A token that ends the text anyway is not told, even where it is asked for as well.
    fn end_tokens(&self, limits: &ParamLimits) -> Result<BTreeMap<u32, Option<StopReason>>, ParamError> {
        self.stop_token_ids.iter().try_for_each(|&id| check_token_id("stop_token_ids", id, limits))?;
        let told = |&id: &u32| (id, Some(StopReason::Token(id)));
        let mut ends: BTreeMap<_, _> = self.stop_token_ids.iter().map(told).collect();
        if !self.ignore_eos {
            ends.extend(limits.eos.told.iter().map(told));
            ends.extend(limits.eos.silent.iter().map(|&id| (id, None)));
        }
        Ok(ends)
    }
}

fn check_list(field: &'static str, texts: &[String], max: usize) -> Result<(), ParamError> {
    let num_bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() <= max && num_bytes <= MAX_LIST_BYTES {
        return Ok(());
    }
    let given = format!("a list of {} texts of {num_bytes} bytes", texts.len());
    refuse(field, given, format!("at most {max} texts of {MAX_LIST_BYTES} bytes together"))
}

fn check_logprobs(
    field: &'static str,
    given: Option<i64>,
    limits: &ParamLimits,
) -> Result<Option<u32>, ParamError> {
    let max_logprobs = limits.max_logprobs;
    match given {
        None => Ok(None),
        // Where the vocabulary is not known yet, this is asked again when it is.
        Some(-1) if limits.vocab_size <= max_logprobs || limits.vocab_size == usize::MAX => {
            Ok(Some(u32::try_from(limits.vocab_size).unwrap_or(u32::MAX)))
        }
        Some(-1) => {
            let all = limits.vocab_size;
            refuse(field, -1, format!("0 to max_logprobs = {max_logprobs}, or all {all} where that is -1"))
        }
        Some(given) => match u32::try_from(given) {
            Ok(number) if number as usize <= max_logprobs => Ok(Some(number)),
            _ => refuse(field, given, format!("0 to max_logprobs = {max_logprobs}")),
        },
    }
}

fn check_token_id(field: &'static str, token_id: u32, limits: &ParamLimits) -> Result<(), ParamError> {
    if (token_id as usize) < limits.vocab_size {
        return Ok(());
    }
    refuse(field, token_id, format!("ids below the vocabulary's size, {}", limits.vocab_size))
}

/// A number without hundreds of digits.
pub(crate) fn written(number: f64) -> String {
    let is_plain = number == 0.0 || (1e-5..1e16).contains(&number.abs()) || !number.is_finite();
    if is_plain { number.to_string() } else { format!("{number:e}") }
}

fn refuse<T>(field: &'static str, value: impl ToString, rule: impl Into<String>) -> Result<T, ParamError> {
    Err(ParamError::Value { field, value: value.to_string(), rule: rule.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EosTokens;

    fn limits() -> ParamLimits {
        let eos = EosTokens { silent: [2].into(), told: [7].into() };
        ParamLimits { vocab_size: 100, max_logprobs: 20, eos, ..ParamLimits::default() }
    }

    fn checked(edit: impl FnOnce(&mut SamplingParams)) -> Result<CheckedParams, String> {
        let mut params = SamplingParams::default();
        edit(&mut params);
        params.check(&limits()).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(edit: impl FnOnce(&mut SamplingParams), message: &str) {
        assert_eq!(checked(edit).unwrap_err(), message);
    }

    #[test]
    fn br_35_refusals_name_field_value_and_rule() {
        check(|p| p.n = 0, "n is 0: expected 1 to 16384");
        check(|p| p.best_of = Some(2), "best_of is 2: expected none, or n = 1");
        check(|p| p.temperature = -0.1, "temperature is -0.1: expected a number from 0 to 2");
        check(|p| p.temperature = f64::INFINITY, "temperature is inf: expected a number from 0 to 2");
        check(|p| p.temperature = f64::NAN, "temperature is NaN: expected a number from 0 to 2");
        check(|p| p.top_p = 0.0, "top_p is 0: expected above 0, at most 1");
        check(|p| p.top_k = -2, "top_k is -2: expected at least 1, or 0 or -1 for all tokens");
        check(|p| p.min_p = 1.1, "min_p is 1.1: expected a number from 0 to 1");
        check(|p| p.presence_penalty = 2.5, "presence_penalty is 2.5: expected a number from -2 to 2");
        check(|p| p.repetition_penalty = 0.0, "repetition_penalty is 0: expected a number above 0");
        check(
            |p| p.repetition_penalty = f64::INFINITY,
            "repetition_penalty is inf: expected a number above 0",
        );
        check(|p| p.stop = vec![String::new()], "stop is [\"\"]: expected no empty string");
        check(
            |p| p.stop = vec!["ab".to_owned(); MAX_STOPS + 1],
            "stop is a list of 1025 texts of 2050 bytes: expected at most 1024 texts of 262144 bytes together",
        );
        check(
            |p| p.bad_words = vec!["a".repeat(MAX_LIST_BYTES), "b".to_owned()],
            "bad_words is a list of 2 texts of 262145 bytes: expected at most 16384 texts of 262144 bytes together",
        );
        check(|p| p.min_tokens = 17, "min_tokens is 17: expected at most max_tokens = 16");
        check(|p| p.logprobs = Some(21), "logprobs is 21: expected 0 to max_logprobs = 20");
        check(|p| p.logprobs = Some(-2), "logprobs is -2: expected 0 to max_logprobs = 20");
        check(
            |p| p.stop_token_ids = vec![100],
            "stop_token_ids is 100: expected ids below the vocabulary's size, 100",
        );
        check(
            |p| p.logit_bias = [(1 << 20, 1.0)].into(),
            "logit_bias is 1048576: expected ids below the vocabulary's size, 100",
        );
    }

    #[test]
    fn the_whole_vocabulary_is_told_where_it_may_be() {
        check(
            |p| p.logprobs = Some(-1),
            "logprobs is -1: expected 0 to max_logprobs = 20, or all 100 where that is -1",
        );
        let params = SamplingParams { logprobs: Some(-1), prompt_logprobs: Some(-1), ..Default::default() };
        let checked = params.check(&ParamLimits { max_logprobs: 100, ..limits() }).unwrap();
        assert_eq!((checked.logprobs(), checked.prompt_logprobs()), (Some(100), Some(100)));
        let unknown = ParamLimits { vocab_size: usize::MAX, ..limits() };
        assert!(params.check(&unknown).is_ok(), "a vocabulary that is not known yet");
    }

    #[test]
    fn only_allowed_tokens_are_left() {
        let row = checked(|p| p.allowed_token_ids = Some(vec![5, 7, 5])).unwrap().row_sampling(0);
        assert_eq!((row.allowed_token_ids, row.logit_bias.len()), (Some(vec![5, 7]), 0));
    }

    #[test]
    fn br_39_max_tokens_never_overflows() {
        check(|p| p.max_tokens = Some(0), "max_tokens is 0: expected at least 1");
        assert_eq!(checked(|p| p.max_tokens = Some(u64::MAX)).unwrap().max_tokens(), Some(u32::MAX));
        assert_eq!(checked(|p| p.max_tokens = None).unwrap().max_tokens(), None);
    }

    #[test]
    fn br_32_small_temperatures_are_greedy_or_raised() {
        let row = |temperature, top_p| {
            let params =
                checked(|p| (p.temperature, p.top_p, p.top_k, p.min_p) = (temperature, top_p, 5, 0.5));
            params.unwrap().row_sampling(0)
        };
        assert_eq!(row(1e-7, 1e-4), RowSampling { end_token_ids: vec![2, 7], ..RowSampling::default() });
        assert_eq!((row(1e-4, 1.0).temperature, row(1e-4, 1.0).top_k), (0.01, 5));
        assert!(row(1.0, 1e-300).top_p > 0.0);
    }

    #[test]
    fn values_are_brought_into_the_device_s_form() {
        let params = checked(|p| {
            p.top_k = -1;
            p.seed = Some(-1);
            p.logit_bias = [(3, 1000.0), (4, -1e300)].into();
        });
        let params = params.unwrap();
        let row = params.row_sampling(9);
        assert_eq!((row.top_k, row.seed, params.seed()), (0, 9, None));
        assert_eq!(row.logit_bias, [(3, 100.0), (4, -100.0)]);
        assert_eq!(checked(|p| p.top_k = i64::MAX).unwrap().row_sampling(0).top_k, 0);
    }

    #[test]
    fn br_31_all_end_tokens_end_and_only_some_are_told() {
        let params = checked(|p| p.stop_token_ids = vec![2, 9]).unwrap();
        assert_eq!(params.ends_with(2), Some(None));
        assert_eq!(params.ends_with(7), Some(Some(StopReason::Token(7))));
        assert_eq!(params.ends_with(9), Some(Some(StopReason::Token(9))));
        assert_eq!(params.ends_with(3), None);
        let params = checked(|p| (p.ignore_eos, p.stop_token_ids) = (true, vec![9])).unwrap();
        assert_eq!((params.ends_with(2), params.ends_with(7)), (None, None));
        assert_eq!(params.row_sampling(0).end_token_ids, [9]);
    }
}
