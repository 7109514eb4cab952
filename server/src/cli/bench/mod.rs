//! `quire bench`: whole runs on made-up tokens, measured as vLLM's own benchmarks do; and single operations.

pub(in crate::cli) mod kernels;
mod latency;
pub(crate) mod limits;
mod serve;
mod spread;
mod throughput;
mod trace;
mod workload;

use std::io::{self, Write};
use std::time::Instant;

use clap::{Args, Subcommand};
use quire_engine::{EngineOptions, EnginePlan, EngineStats, Llm, Request, RequestOutput};
use serde::Serialize;

use super::Context;
use super::model::ModelArgs;
use crate::error::{Error, Result};
use crate::start;

#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

/// Prompts of latency and throughput are made-up tokens, the same in every run: the token at place `j` of prompt `k` is
/// `(k * 7919 + j * 104729) % 150000`, within the vocabulary. Results are lines of JSON on standard output. The prefix
/// cache is off unless it is asked for.
#[derive(Subcommand)]
enum BenchCommand {
    /// Batches of equal requests: time to first token, time a step.
    Latency(latency::LatencyArgs),
    /// Many requests at once: tokens a second.
    Throughput(throughput::ThroughputArgs),
    /// A load on a server with OpenAI's API, this or another: times to the first token and between tokens.
    Serve(serve::ServeArgs),
    /// Single operations of a backend, as shares of what the device can do.
    Kernels(kernels::KernelsArgs),
}

pub(super) fn run(context: &Context<'_>, args: &BenchArgs) -> Result<()> {
    match &args.command {
        BenchCommand::Latency(args) => latency::run(context, args),
        BenchCommand::Throughput(args) => throughput::run(context, args),
        BenchCommand::Serve(args) => serve::run(args),
        BenchCommand::Kernels(args) => kernels::run(context, args),
    }
}

/// A loaded engine, and how long that took.
struct Bench {
    llm: Llm,
    header: Header,
}

/// What a result is about.
#[derive(Clone, Serialize)]
struct Header {
    model: String,
    device: String,
    load_s: f64,
}

/// How the steps of some runs went.
#[derive(Serialize)]
struct Steps {
    num_steps: u64,
    /// Times that a sequence gave way to others.
    num_preemptions: u64,
    /// Microseconds that the device worked on a step, on average.
    device_us_per_step: f64,
    /// Microseconds that it waited before a step for the host.
    device_idle_us_per_step: f64,
}

impl Steps {
    fn between(before: &EngineStats, after: &EngineStats) -> Self {
        let num_steps = after.num_steps - before.num_steps;
        let per_step = |before: u64, after: u64| (after - before) as f64 / num_steps.max(1) as f64;
        Self {
            num_steps,
            num_preemptions: after.num_preemptions - before.num_preemptions,
            device_us_per_step: per_step(before.device_time_us, after.device_time_us),
            device_idle_us_per_step: per_step(before.device_idle_us, after.device_idle_us),
        }
    }
}

impl Bench {
    /// Loads the model; a setting that nobody gave is the one of the benchmark. What is asked for is checked against the
    /// plan, before any weight is read.
    fn start(
        context: &Context<'_>,
        model: &ModelArgs,
        seed: Option<u64>,
        check: impl FnOnce(&EnginePlan) -> Result<()>,
    ) -> Result<Self> {
        let started = Instant::now();
        let (options, parts) = model.resolve(context, seed)?;
        let device = parts.kernels.device().info().name.clone();
        let options = options.or(EngineOptions::default().enable_prefix_caching(false));
        let plan = start::builder(options, &parts).plan()?;
        check(&plan)?;
        let llm = start::load(plan)?;
        let load_s = started.elapsed().as_secs_f64();
        Ok(Self { header: Header { model: llm.model().name.clone(), device, load_s }, llm })
    }

    /// Runs all of them at once; how long that took, in seconds. Each output is as long as its request asks for.
    fn timed(&self, requests: Vec<Request>) -> Result<(f64, Vec<RequestOutput>)> {
        let lengths: Vec<usize> = requests.iter().map(output_len).collect();
        let started = Instant::now();
        let outputs = self.llm.generate_each(requests);
        let elapsed = started.elapsed().as_secs_f64();
        let outputs: Vec<RequestOutput> = outputs.into_iter().collect::<Result<_, _>>()?;
        for (&expected, output) in lengths.iter().zip(&outputs) {
            limits::check_output(expected, output)?;
        }
        Ok((elapsed, outputs))
    }

    /// Prints a line of results.
    fn print(&self, bench: &str, result: &impl Serialize) -> Result<()> {
        #[derive(Serialize)]
        struct Line<'a, T> {
            bench: &'a str,
            #[serde(flatten)]
            header: &'a Header,
            #[serde(flatten)]
            result: &'a T,
        }
        let line = Line { bench, header: &self.header, result };
        let line = serde_json::to_string(&line).map_err(|error| Error::Stdout(error.into()))?;
        writeln!(io::stdout(), "{line}").map_err(Error::Stdout)
    }
}

/// Tokens that a made-up request asks for.
fn output_len(request: &Request) -> usize {
    request.params.max_tokens.and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}
