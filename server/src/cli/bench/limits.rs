//! What a benchmark may ask for. A result is of what was asked for; where it would not be, there is none.

use quire_engine::{EnginePlan, RequestOutput};

use super::workload::Shape;
use crate::error::Result;

/// The longest prompt or output: more than any model takes.
pub(super) const MAX_LEN: usize = 1 << 24;

/// The most requests at once.
pub(super) const MAX_REQUESTS: usize = 1_000_000;

/// The most repetitions.
pub(super) const MAX_ITERS: usize = 1_000_000;

/// The most tokens of all prompts and outputs of a run, which are held in memory.
const MAX_TOKENS: usize = 1 << 28;

/// Why a benchmark has no result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Prompt and output are longer than a sequence may be.
    #[error(
        "--input-len {input_len} and --output-len {output_len} are {} tokens together: expected at most max_model_len = {max_model_len}",
        input_len + output_len
    )]
    TooLong {
        /// Tokens of the prompt.
        input_len: usize,
        /// Tokens of the output.
        output_len: usize,
        /// The limit in force.
        max_model_len: usize,
    },
    /// More requests than run at once.
    #[error(
        "--batch-size {batch_size} is more than max_num_seqs = {max_num_seqs}: they would not run at once (raise --max-num-seqs)"
    )]
    BatchSize {
        /// Requests.
        batch_size: usize,
        /// Sequences that run at once.
        max_num_seqs: usize,
    },
    /// More than is held in memory.
    #[error("{num_tokens} tokens in {num_requests} requests: expected at most {MAX_TOKENS} in all")]
    TooManyTokens {
        /// Requests.
        num_requests: usize,
        /// Tokens of their prompts and outputs.
        num_tokens: usize,
    },
    /// A trace of more lines than are read.
    #[error("{file} holds more than {MAX_REQUESTS} requests: expected at most that")]
    TooManyRequests {
        /// The file.
        file: String,
    },
    /// A trace without a request.
    #[error("{file} holds no request: expected an object a line, with prompt_tokens and output_tokens")]
    EmptyTrace {
        /// The file.
        file: String,
    },
    /// A model that ended its output before the length asked for, so that times are of something else.
    #[error(
        "an output ended after {given} tokens ({reason}) where {expected} were asked for: there is no result"
    )]
    OutputLen {
        /// Tokens that came.
        given: usize,
        /// Tokens that were to come.
        expected: usize,
        /// Why it ended.
        reason: &'static str,
    },
}

impl BenchError {
    /// Whether what was asked for is at fault.
    pub(crate) fn is_usage(&self) -> bool {
        !matches!(self, Self::OutputLen { .. })
    }
}

/// A whole number from 1 to `max`.
pub(super) fn up_to(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("expected a whole number from 1 to {max}"))
    }
}

/// Refuses lengths that no sequence may have.
pub(super) fn check_len(shape: Shape, max_model_len: usize) -> Result<(), BenchError> {
    let Shape { input_len, output_len } = shape;
    match shape.num_tokens() <= max_model_len {
        true => Ok(()),
        false => Err(BenchError::TooLong { input_len, output_len, max_model_len }),
    }
}

/// Refuses more tokens than are held in memory.
pub(super) fn check_total(
    num_requests: usize,
    tokens: impl IntoIterator<Item = usize>,
) -> Result<(), BenchError> {
    let num_tokens = tokens.into_iter().fold(0, usize::saturating_add);
    match num_tokens <= MAX_TOKENS {
        true => Ok(()),
        false => Err(BenchError::TooManyTokens { num_requests, num_tokens }),
    }
}

/// Refuses batches that would not run as one; warns of those that the KV pool does not hold.
pub(super) fn check_batch(plan: &EnginePlan, batch_size: usize, shape: Shape) -> Result<(), BenchError> {
    let max_num_seqs = plan.config().max_num_seqs;
    if batch_size > max_num_seqs {
        return Err(BenchError::BatchSize { batch_size, max_num_seqs });
    }
    check_total(batch_size, [batch_size.saturating_mul(shape.num_tokens())])?;
    let max_concurrency = max_concurrency(plan.memory().num_pool_tokens(), plan.config().block_size, shape);
    if batch_size > max_concurrency {
        tracing::warn!(
            target: "quire::server",
            "the KV pool holds {max_concurrency} sequences of {} tokens: a batch of {batch_size} does not run at once \
             (raise --kv-cache-memory)",
            shape.num_tokens()
        );
    }
    Ok(())
}

/// Sequences of a shape that a pool has room for. The last token is computed by nobody and has no place there.
pub(super) fn max_concurrency(pool_tokens: usize, block_size: usize, shape: Shape) -> usize {
    let num_slots = shape.num_tokens().saturating_sub(1).max(1);
    pool_tokens / num_slots.next_multiple_of(block_size.max(1))
}

/// Refuses outputs of another length than was asked for.
pub(super) fn check_output(expected: usize, output: &RequestOutput) -> Result<(), BenchError> {
    let given = output.outputs.iter().map(|output| output.token_ids.len()).min().unwrap_or(0);
    let reason = output.outputs.first().map_or("none", |output| output.finish_reason.name());
    if given == expected { Ok(()) } else { Err(BenchError::OutputLen { given, expected, reason }) }
}

#[cfg(test)]
mod tests {
    use quire_engine::{CompletionOutput, FinishReason, RequestId, RequestMetrics};

    use super::*;

    fn output(num_tokens: usize, finish_reason: FinishReason) -> RequestOutput {
        let output = CompletionOutput {
            index: 0,
            text: String::new(),
            token_ids: vec![1; num_tokens],
            cumulative_logprob: None,
            logprobs: None,
            finish_reason,
            stop_reason: None,
        };
        RequestOutput {
            request_id: RequestId::next(),
            prompt: None,
            prompt_token_ids: vec![1],
            prompt_logprobs: None,
            outputs: vec![output],
            num_cached_tokens: 0,
            metrics: RequestMetrics::default(),
        }
    }

    #[test]
    fn an_output_of_another_length_is_no_result() {
        assert_eq!(check_output(4, &output(4, FinishReason::Length)), Ok(()));
        let error = check_output(32, &output(5, FinishReason::Stop)).unwrap_err();
        assert_eq!(error, BenchError::OutputLen { given: 5, expected: 32, reason: "stop" });
        assert!(!error.is_usage());
    }

    #[test]
    fn lengths_are_bounded_by_the_model_and_by_memory() {
        let shape = |input_len, output_len| Shape { input_len, output_len };
        assert_eq!(check_len(shape(60, 4), 64), Ok(()));
        assert!(check_len(shape(60, 5), 64).is_err() && check_len(shape(usize::MAX, 5), 64).is_err());
        assert_eq!(check_total(2, [MAX_TOKENS, 0]), Ok(()));
        assert!(check_total(2, [MAX_TOKENS, 1]).is_err() && check_total(2, [usize::MAX; 2]).is_err());
    }

    #[test]
    fn a_pool_holds_whole_blocks() {
        let shape = Shape { input_len: 30, output_len: 3 };
        assert_eq!(max_concurrency(64, 16, shape), 2);
        assert_eq!(max_concurrency(64, 16, Shape { output_len: 4, ..shape }), 1);
        assert_eq!(max_concurrency(8, 16, Shape { input_len: 1, output_len: 1 }), 0);
    }

    #[test]
    fn a_number_out_of_range_is_told_the_range() {
        assert_eq!(up_to(8)("8"), Ok(8));
        for text in ["0", "9", "-1", "x", "99999999999999999999999"] {
            assert_eq!(up_to(8)(text), Err("expected a whole number from 1 to 8".to_owned()));
        }
    }
}
