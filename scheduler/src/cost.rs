//! How long a step takes, as a linear function of what it computes.

mod fit;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::StepPlan;

pub use fit::{FitError, FitReport, Run, StepSample, fit, fit_runs};

/// What a step computes, as far as its time depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StepWork {
    /// Rows of the step.
    pub num_rows: u64,
    /// Tokens of rows that compute several: parts of prompts.
    pub prefill_tokens: u64,
    /// Rows that compute one token.
    pub num_decodes: u64,
    /// Tokens that the rows of one token read from the cache.
    pub context_tokens: u64,
    /// Pairs of a token of a prompt and one before it, which attention goes through.
    pub prefill_pairs: u64,
    /// Blocks moved to the host or back.
    pub swapped_blocks: u64,
}

impl StepWork {
    /// What a plan computes.
    pub fn of(plan: &StepPlan) -> Self {
        let swapped_blocks = plan.transfers.iter().map(|transfer| transfer.blocks.len() as u64).sum();
        let mut work = Self { num_rows: plan.rows.len() as u64, swapped_blocks, ..Self::default() };
        for row in &plan.rows {
            let (start, num_tokens) = (u64::from(row.start), u64::from(row.num_tokens));
            if num_tokens == 1 {
                work.num_decodes += 1;
                work.context_tokens += start;
            } else {
                work.prefill_tokens += num_tokens;
                work.prefill_pairs += num_tokens * start + num_tokens * (num_tokens + 1) / 2;
            }
        }
        work
    }

    /// Tokens that the step computes.
    pub fn num_tokens(&self) -> u64 {
        self.prefill_tokens + self.num_decodes
    }
}

/// The time of a step in microseconds, linear in its [`StepWork`]:
///
/// ```text
/// step_us + prefill_token_us × prefill_tokens + decode_us × num_decodes
///         + context_token_us × context_tokens + prefill_pair_us × prefill_pairs
///         + swapped_block_us × swapped_blocks
/// ```
///
/// A device that reads weights while it computes takes the longer of two times where this takes their sum: steps that
/// mix short prompts and decodes come out some percent too long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Model and machine.
    pub name: String,
    /// Where the numbers are from.
    pub source: String,
    /// Whatever it computes: weights are read, kernels launched.
    pub step_us: f64,
    /// A token of a prompt.
    pub prefill_token_us: f64,
    /// A row of one token.
    pub decode_us: f64,
    /// A token of context read by such a row.
    #[serde(default)]
    pub context_token_us: f64,
    /// A pair of a prompt's token and one before it.
    #[serde(default)]
    pub prefill_pair_us: f64,
    /// A block moved between device and host.
    #[serde(default)]
    pub swapped_block_us: f64,
    /// Tokens that the KV pool of the machine holds, where nobody says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_pool_tokens: Option<u64>,
}

/// Why a cost model cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostModelError {
    /// The text is no cost model.
    #[error("not a cost model: {reason}")]
    Json {
        /// What the reader met, with its place.
        reason: String,
    },
    /// A term that cannot be a time.
    #[error("{field} is {given}, expected a number of at least 0")]
    Term {
        /// The term.
        field: &'static str,
        /// Its value.
        given: String,
    },
}

impl Default for CostModel {
    /// Qwen2.5-7B in bf16 on one NVIDIA H200, from `docs/performance.md`: decode batches of 1 to 256 at a context of 640
    /// give `step_us` and `decode_us`, a context of 30,000 gives `context_token_us`, prompts of 2,048 and of 30,000 give
    /// the two terms of prompts. A swapped block is its bytes at 50 GB/s, which is not measured.
    fn default() -> Self {
        Self {
            name: "qwen2.5-7b-bf16-h200".to_owned(),
            source: "docs/performance.md: Quire on one NVIDIA H200, random weights".to_owned(),
            step_us: 3620.0,
            prefill_token_us: 20.9,
            decode_us: 13.0,
            context_token_us: 0.0157,
            prefill_pair_us: 0.000_7,
            swapped_block_us: 18.0,
            kv_pool_tokens: Some(1_906_032),
        }
    }
}

impl CostModel {
    /// Reads a model from JSON.
    ///
    /// # Errors
    /// [`CostModelError`].
    pub fn parse(text: &str) -> Result<Self, CostModelError> {
        let model: Self =
            serde_json::from_str(text).map_err(|error| CostModelError::Json { reason: error.to_string() })?;
        for (field, term) in model.terms() {
            if !(term.is_finite() && term >= 0.0) {
                return Err(CostModelError::Term { field, given: term.to_string() });
            }
        }
        Ok(model)
    }

    /// The terms by name.
    pub fn terms(&self) -> [(&'static str, f64); 6] {
        [
            ("step_us", self.step_us),
            ("prefill_token_us", self.prefill_token_us),
            ("decode_us", self.decode_us),
            ("context_token_us", self.context_token_us),
            ("prefill_pair_us", self.prefill_pair_us),
            ("swapped_block_us", self.swapped_block_us),
        ]
    }

    /// The time of a step; at least a nanosecond, so that time goes on.
    pub fn step_time(&self, work: &StepWork) -> Duration {
        let factors = factors(work);
        let micros: f64 = self.terms().iter().zip(factors).map(|((_, term), factor)| term * factor).sum();
        Duration::from_nanos((micros * 1e3) as u64).max(Duration::from_nanos(1))
    }
}

/// What the terms are multiplied with.
fn factors(work: &StepWork) -> [f64; 6] {
    let counts =
        [work.prefill_tokens, work.num_decodes, work.context_tokens, work.prefill_pairs, work.swapped_blocks];
    let mut factors = [1.0; 6];
    factors[1..].iter_mut().zip(counts).for_each(|(factor, count)| *factor = count as f64);
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_within_a_tenth_of_what_was_measured() {
        let model = CostModel::default();
        let decode_ms = |batch: u64| {
            let work = StepWork { num_decodes: batch, context_tokens: batch * 640, ..StepWork::default() };
            model.step_time(&work).as_secs_f64() * 1e3
        };
        for (batch, measured) in [(1, 3.65), (8, 3.98), (32, 4.74), (64, 5.12), (128, 6.15), (256, 9.52)] {
            let simulated = decode_ms(batch);
            assert!((simulated / measured - 1.0).abs() < 0.1, "batch {batch}: {simulated} for {measured}");
        }
    }

    #[test]
    fn a_model_is_read_back_as_it_was_written() {
        let model = CostModel::default();
        let text = serde_json::to_string(&model).unwrap();
        assert_eq!(CostModel::parse(&text).unwrap(), model);
        let error = CostModel::parse("{\"name\": \"x\"}").unwrap_err().to_string();
        assert!(error.contains("missing field `source`"), "{error}");
        let negative = text.replace("\"decode_us\":13.0", "\"decode_us\":-13.0");
        let error = CostModel::parse(&negative).unwrap_err().to_string();
        assert_eq!(error, "decode_us is -13, expected a number of at least 0");
    }
}
