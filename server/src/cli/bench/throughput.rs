//! `quire bench throughput`.

use std::path::PathBuf;

use clap::Args;
use quire_engine::{Request, RequestOutput, SamplingParams};
use serde::Serialize;

use super::limits::{BenchError, MAX_ITERS, MAX_LEN, MAX_REQUESTS, check_len, check_total, up_to};
use super::spread::Spread;
use super::trace::Trace;
use super::workload::{Shape, Workload};
use super::{Bench, Steps};
use crate::cli::Context;
use crate::cli::model::ModelArgs;
use crate::cli::sampling::DrawFlags;
use crate::error::Result;

#[derive(Args)]
pub(crate) struct ThroughputArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The lengths of the requests: an object a line, with `prompt_tokens` and `output_tokens`. All are submitted at once.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["num_prompts", "input_len", "output_len"])]
    trace: Option<PathBuf>,
    /// Without a trace: how many requests.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = up_to(MAX_REQUESTS))]
    num_prompts: usize,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = up_to(MAX_LEN))]
    input_len: usize,
    /// Tokens generated after it.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(MAX_LEN))]
    output_len: usize,
    /// Measured repetitions.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = up_to(MAX_ITERS))]
    num_iters: usize,
    /// Repetitions before them that do not count.
    #[arg(long, value_name = "N", default_value_t = 1)]
    num_iters_warmup: usize,
    #[command(flatten)]
    sampling: DrawFlags,
}

#[derive(Serialize)]
struct Throughput {
    num_requests: usize,
    prompt_tokens: usize,
    output_tokens: usize,
    num_iters: usize,
    #[serde(flatten)]
    steps: Steps,
    elapsed_s: Spread,
    requests_per_s: f64,
    output_tokens_per_s: f64,
    total_tokens_per_s: f64,
}

pub(super) fn run(context: &Context<'_>, args: &ThroughputArgs) -> Result<()> {
    let params = args.sampling.over(&SamplingParams { temperature: 0.0, ..SamplingParams::default() })?;
    let read = args.trace.as_deref();
    args.model.check_trace_tensors(read.as_slice())?;
    // A trace without a good line is told before a model is fetched.
    let trace = args.trace.as_deref().map(Trace::read).transpose()?;
    let mut shapes = Vec::new();
    let bench = Bench::start(context, &args.model, args.sampling.seed(), |plan| {
        let max_model_len = plan.config().max_model_len();
        shapes = match trace {
            Some(trace) => trace.checked(max_model_len)?,
            None => args.shapes(max_model_len)?,
        };
        Ok(check_total(shapes.len(), shapes.iter().map(|shape| shape.num_tokens()))?)
    })?;
    let workload = Workload { vocab_size: bench.llm.model().vocab_size, params };
    let requests = || -> Vec<Request> {
        shapes.iter().enumerate().map(|(k, &shape)| workload.request(k, shape)).collect()
    };
    for _ in 0..args.num_iters_warmup {
        bench.timed(requests())?;
    }
    let before = bench.llm.stats();
    let runs = (0..args.num_iters).map(|_| bench.timed(requests())).collect::<Result<Vec<_>>>()?;
    let steps = Steps::between(&before, &bench.llm.stats());
    bench.print("throughput", &summary(&runs, steps))
}

impl ThroughputArgs {
    /// The lengths of requests that are all alike.
    fn shapes(&self, max_model_len: usize) -> Result<Vec<Shape>, BenchError> {
        let shape = Shape { input_len: self.input_len, output_len: self.output_len };
        check_len(shape, max_model_len)?;
        Ok(vec![shape; self.num_prompts])
    }
}

/// Of at least one run, all of the same requests.
fn summary(runs: &[(f64, Vec<RequestOutput>)], steps: Steps) -> Throughput {
    let outputs = &runs[0].1;
    let elapsed_s = Spread::of(runs.iter().map(|run| run.0));
    let prompt_tokens: usize = outputs.iter().map(|output| output.prompt_token_ids.len()).sum();
    let output_tokens: usize = outputs.iter().map(|output| output.outputs[0].token_ids.len()).sum();
    let per_s = |count: usize| count as f64 / elapsed_s.median;
    Throughput {
        num_requests: outputs.len(),
        prompt_tokens,
        output_tokens,
        num_iters: runs.len(),
        steps,
        elapsed_s,
        requests_per_s: per_s(outputs.len()),
        output_tokens_per_s: per_s(output_tokens),
        total_tokens_per_s: per_s(prompt_tokens + output_tokens),
    }
}
