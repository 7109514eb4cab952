//! `quire bench latency`.

use std::time::Instant;

use clap::Args;
use quire_engine::{RequestEvent, SamplingParams};
use serde::Serialize;

use super::limits::{
    MAX_ITERS, MAX_LEN, MAX_REQUESTS, check_batch, check_len, check_output, max_concurrency, up_to,
};
use super::spread::Spread;
use super::workload::{Shape, Workload};
use super::{Bench, Steps};
use crate::cli::Context;
use crate::cli::model::ModelArgs;
use crate::cli::sampling::DrawFlags;
use crate::error::Result;

#[derive(Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(MAX_LEN))]
    input_len: usize,
    /// Tokens generated after it.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = up_to(MAX_LEN))]
    output_len: usize,
    /// Requests at once; several numbers, separated by commas, are measured one after the other.
    #[arg(long, value_name = "N,...", default_value = "1", value_delimiter = ',', value_parser = up_to(MAX_REQUESTS))]
    batch_size: Vec<usize>,
    /// Measured repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = up_to(MAX_ITERS))]
    num_iters: usize,
    /// Repetitions before them that do not count.
    #[arg(long, value_name = "N", default_value_t = 1)]
    num_iters_warmup: usize,
    #[command(flatten)]
    sampling: DrawFlags,
}

/// Of one batch size.
#[derive(Serialize)]
struct Latency {
    batch_size: usize,
    input_len: usize,
    output_len: usize,
    num_iters: usize,
    /// Sequences of these lengths that the KV pool holds at once: a larger batch is none.
    max_concurrency: usize,
    /// Of the whole runs.
    #[serde(flatten)]
    steps: Steps,
    /// The whole run.
    total_s: Spread,
    /// The same with one token of output.
    first_token_s: Spread,
    /// What is left of the first over the steps that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tokens_per_s: Option<f64>,
    /// As the caller of a single request sees its tokens come.
    #[serde(flatten)]
    stream: Option<StreamLatency>,
}

#[derive(Serialize)]
struct StreamLatency {
    ttft_ms: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    tpot_ms: Option<Spread>,
}

pub(super) fn run(context: &Context<'_>, args: &LatencyArgs) -> Result<()> {
    let params = args.sampling.over(&SamplingParams { temperature: 0.0, ..SamplingParams::default() })?;
    let bench = Bench::start(context, &args.model, args.sampling.seed(), |plan| {
        check_len(args.shape(), plan.config().max_model_len())?;
        Ok(args.batch_size.iter().try_for_each(|&batch_size| check_batch(plan, batch_size, args.shape()))?)
    })?;
    let workload = Workload { vocab_size: bench.llm.model().vocab_size, params };
    for &batch_size in &args.batch_size {
        let result = Batch { bench: &bench, workload: &workload, args, batch_size }.measure()?;
        bench.print("latency", &result)?;
    }
    Ok(())
}

impl LatencyArgs {
    fn shape(&self) -> Shape {
        Shape { input_len: self.input_len, output_len: self.output_len }
    }
}

struct Batch<'a> {
    bench: &'a Bench,
    workload: &'a Workload,
    args: &'a LatencyArgs,
    batch_size: usize,
}

impl Batch<'_> {
    fn measure(&self) -> Result<Latency> {
        let LatencyArgs { input_len, output_len, num_iters, num_iters_warmup, .. } = *self.args;
        let shape = self.args.shape();
        for _ in 0..num_iters_warmup {
            self.seconds(shape)?;
        }
        let before = self.bench.llm.stats();
        let totals = (0..num_iters).map(|_| self.seconds(shape)).collect::<Result<Vec<_>>>()?;
        let after = self.bench.llm.stats();
        let steps = Steps::between(&before, &after);
        let one = Shape { output_len: 1, ..shape };
        let firsts = (0..num_iters).map(|_| self.seconds(one)).collect::<Result<Vec<_>>>()?;
        let (total_s, first_token_s) = (Spread::of(totals), Spread::of(firsts));
        let steps_s = total_s.median - first_token_s.median;
        let num_steps = (output_len > 1).then(|| (output_len - 1) as f64);
        Ok(Latency {
            batch_size: self.batch_size,
            input_len,
            output_len,
            num_iters,
            max_concurrency: self.max_concurrency(after.num_blocks()),
            steps,
            total_s,
            first_token_s,
            step_ms: num_steps.map(|steps| steps_s / steps * 1e3),
            decode_tokens_per_s: num_steps.map(|steps| self.batch_size as f64 * steps / steps_s),
            stream: if self.batch_size == 1 { Some(self.stream(shape)?) } else { None },
        })
    }

    fn max_concurrency(&self, num_blocks: usize) -> usize {
        let block_size = self.bench.llm.config().block_size;
        max_concurrency(num_blocks * block_size, block_size, self.args.shape())
    }

    fn seconds(&self, shape: Shape) -> Result<f64> {
        Ok(self.bench.timed(self.workload.requests(0, self.batch_size, shape))?.0)
    }

    fn stream(&self, shape: Shape) -> Result<StreamLatency> {
        let runs = (0..self.args.num_iters).map(|_| self.stamps(shape)).collect::<Result<Vec<_>>>()?;
        let tpots: Vec<f64> = runs.iter().filter_map(|run| run.1).collect();
        Ok(StreamLatency {
            ttft_ms: Spread::of(runs.iter().map(|run| run.0)),
            tpot_ms: (!tpots.is_empty()).then(|| Spread::of(tpots)),
        })
    }

    /// Milliseconds to the first token, and from one to the next.
    fn stamps(&self, shape: Shape) -> Result<(f64, Option<f64>)> {
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let started = Instant::now();
        let mut stream = self.bench.llm.stream(self.workload.request(0, shape))?;
        let mut seen: Option<(Instant, Instant, usize)> = None;
        while let Some(event) = stream.blocking_next() {
            match event {
                RequestEvent::Delta(delta) if !delta.token_ids.is_empty() => {
                    let now = Instant::now();
                    let (first, num_tokens) = seen.map_or((now, 0), |(first, _, count)| (first, count));
                    seen = Some((first, now, num_tokens + delta.token_ids.len()));
                }
                RequestEvent::Finished(output) => check_output(shape.output_len, &output)?,
                RequestEvent::Failed(error) => return Err(error.into()),
                RequestEvent::PromptLogprobs(_) | RequestEvent::Delta(_) | RequestEvent::SoFar(_) => {}
            }
        }
        let (first, last, num_tokens) = seen.unwrap_or((started, started, 1));
        let tpot = (num_tokens > 1).then(|| ms(first, last) / (num_tokens - 1) as f64);
        Ok((ms(started, first), tpot))
    }
}
