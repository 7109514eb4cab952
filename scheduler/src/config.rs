//! The limits of a step.

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::preemption::Preemption;

/// The limits the scheduler keeps, whatever the policy asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// Tokens that a step may compute, at least `max_num_seqs`, so that prompts move while all others decode.
    pub max_num_batched_tokens: u32,
    /// Sequences that may run at once, at least 1.
    pub max_num_seqs: u32,
    /// Tokens of a sequence, prompt and output together, at least 2.
    pub max_model_len: u32,
    /// Whether a prompt may be computed over several steps.
    pub enable_chunked_prefill: bool,
    /// Tokens of one prompt that a step computes at most; `None` leaves it to the token budget.
    pub max_prefill_chunk: Option<u32>,
    /// Prompts that may be computed in part at the same time, at least 1; `None` sets no limit. One that is too long for
    /// what is left of a step waits while so many are under way.
    pub max_num_partial_prefills: Option<u32>,
    /// When a sequence may start.
    pub capacity_mode: CapacityMode,
    /// How sequences give way.
    pub preemption: Preemption,
}

/// When a sequence may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CapacityMode {
    /// When there are blocks for all tokens it has now. More run at once; when they outgrow the pool, the last ranked
    /// gives way.
    #[default]
    MaxUtilization,
    /// When there are blocks for all tokens that it and those that run may ever have. Fewer run at once, and none gives
    /// way for want of blocks.
    Guaranteed,
}

impl CapacityMode {
    /// Both modes, with their names.
    pub const NAMES: [(&'static str, Self); 2] =
        [("max-utilization", Self::MaxUtilization), ("guaranteed", Self::Guaranteed)];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxUtilization => "max-utilization",
            Self::Guaranteed => "guaranteed",
        }
    }
}

impl SchedulerConfig {
    /// The defaults for a model: 2048 tokens a step, 128 sequences, chunked prefill.
    pub fn new(max_model_len: u32) -> Self {
        Self {
            max_num_batched_tokens: 2048,
            max_num_seqs: 128,
            max_model_len,
            enable_chunked_prefill: true,
            max_prefill_chunk: None,
            max_num_partial_prefills: None,
            capacity_mode: CapacityMode::default(),
            preemption: Preemption::default(),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, with its value and the values that work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        at_least("max_num_seqs", self.max_num_seqs, 1, "")?;
        at_least("max_model_len", self.max_model_len, 2, ", a token of prompt and one of output")?;
        at_least(
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            self.max_num_seqs,
            " (max_num_seqs)",
        )?;
        at_least("max_prefill_chunk", self.max_prefill_chunk.unwrap_or(1), 1, "")?;
        at_least("max_num_partial_prefills", self.max_num_partial_prefills.unwrap_or(1), 1, "")?;
        if self.enable_chunked_prefill {
            return Ok(());
        }
        // All other sequences may decode in the step that computes the longest prompt.
        let need = self.max_model_len.saturating_add(self.max_num_seqs - 1);
        let why = " (max_model_len + max_num_seqs - 1) where chunked prefill is off";
        at_least("max_num_batched_tokens", self.max_num_batched_tokens, need, why)?;
        match self.max_prefill_chunk {
            Some(given) => {
                let expected = "none where chunked prefill is off".to_owned();
                Err(ConfigError { field: "max_prefill_chunk", given, expected })
            }
            None => Ok(()),
        }
    }
}

fn at_least(field: &'static str, given: u32, min: u32, why: &str) -> Result<(), ConfigError> {
    let expected = || format!("at least {min}{why}");
    if given >= min { Ok(()) } else { Err(ConfigError { field, given, expected: expected() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(edit: impl FnOnce(&mut SchedulerConfig), message: &str) {
        let mut config = SchedulerConfig::new(4096);
        edit(&mut config);
        assert_eq!(config.validate().unwrap_err().to_string(), message);
    }

    #[test]
    fn refusals_name_field_value_and_what_works() {
        SchedulerConfig::new(4096).validate().unwrap();
        check(|c| c.max_num_seqs = 0, "max_num_seqs is 0, expected at least 1");
        check(
            |c| c.max_model_len = 1,
            "max_model_len is 1, expected at least 2, a token of prompt and one of output",
        );
        check(
            |c| c.max_num_batched_tokens = 100,
            "max_num_batched_tokens is 100, expected at least 128 (max_num_seqs)",
        );
        check(|c| c.max_num_partial_prefills = Some(0), "max_num_partial_prefills is 0, expected at least 1");
        check(|c| c.max_prefill_chunk = Some(0), "max_prefill_chunk is 0, expected at least 1");
        check(
            |c| c.enable_chunked_prefill = false,
            "max_num_batched_tokens is 2048, expected at least 4223 (max_model_len + max_num_seqs - 1) where \
             chunked prefill is off",
        );
    }
}
