//! `quire simulate`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use quire_scheduler::cost::CostModel;
use quire_scheduler::plot;
use quire_scheduler::simulate::{Setup, simulate};
use quire_scheduler::trace::{Trace, TraceError};
use quire_scheduler::{CapacityMode, KvCacheConfig, Preemption, SchedulerConfig, Time};

use super::Context;
use super::load::{arrival_times, check_output, policy, positive, read_cost_model, read_trace};
use super::output::{OutputFormat, write_line};
use super::picture::Picture;
use crate::error::{Error, Result};

/// The real scheduler and the real block manager in virtual time: a step takes as long as the cost model says. Exit code 1
/// where a request could never run: the report says why.
#[derive(Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// The scheduling policy; several, separated by commas, are run one after the other.
    #[arg(long, value_name = "NAME,...", default_value = "fcfs", value_delimiter = ',')]
    policy: Vec<String>,
    #[command(flatten)]
    arrivals: ArrivalArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// text or json (an object a policy).
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
    /// Draws the run; with several policies, that of the last.
    #[arg(long, value_name = "FILE.svg|png", value_parser = Picture::parse)]
    plot: Option<Picture>,
}

/// Which requests come when.
#[derive(Args)]
pub(crate) struct LoadArgs {
    /// Requests, as JSON lines with prompt_tokens and output_tokens, or as CSV with arrival_s too; tenant, priority,
    /// prefix, prefix_tokens and max_tokens are used where present.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: PathBuf,
    /// Draws so many requests by the law of the trace, in place of the trace itself.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_REQUESTS))]
    num_requests: Option<u32>,
    /// What they, and times that a trace lacks, are drawn with.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// More would take hours and gigabytes.
const MAX_REQUESTS: i64 = 10_000_000;

/// When requests come. Without any of these they come as the trace says, or all at once where it has no times of its own.
#[derive(Args)]
pub(crate) struct ArrivalArgs {
    /// Requests that come in a second. Where the trace has no times they come with gaps by chance, drawn from --seed.
    #[arg(long, value_name = "R", value_parser = positive)]
    request_rate: Option<f64>,
    /// All requests come at the beginning, whatever the trace says.
    #[arg(long, conflicts_with = "request_rate")]
    at_once: bool,
}

impl ArrivalArgs {
    pub(super) fn times(&self, load: &LoadArgs, trace: &Trace) -> Result<Vec<Time>> {
        if self.at_once {
            return Ok(vec![Time::ZERO; trace.requests.len()]);
        }
        arrival_times(trace, self.request_rate, load.seed).map_err(|source| load.error(source))
    }
}

impl LoadArgs {
    pub(super) fn read(&self) -> Result<Trace> {
        let trace = read_trace(&self.trace)?;
        Ok(self.num_requests.map_or_else(|| trace.clone(), |count| trace.drawn(count as usize, self.seed)))
    }

    /// What is wrong with the trace.
    fn error(&self, source: TraceError) -> Error {
        Error::LoadTrace { path: self.trace.clone(), source }
    }
}

/// What the simulated engine is like.
#[derive(Args)]
struct LimitArgs {
    /// Blocks of the KV pool; by default what the machine of the cost model holds.
    #[arg(long, value_name = "N", alias = "num-gpu-blocks-override")]
    blocks: Option<u32>,
    /// Tokens a block holds.
    #[arg(long, value_name = "N", default_value_t = 16)]
    block_size: u32,
    /// Sequences that run at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_num_seqs: u32,
    /// Tokens that a step computes.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_num_batched_tokens: u32,
    /// Tokens of prompt and output together; by default what the longest request needs.
    #[arg(long, value_name = "N")]
    max_model_len: Option<u32>,
    /// Tokens of one prompt that a step computes.
    #[arg(long, value_name = "N", alias = "long-prefill-token-threshold")]
    max_prefill_chunk: Option<u32>,
    /// Prompts that are computed in part at the same time.
    #[arg(long, value_name = "N")]
    max_num_partial_prefills: Option<u32>,
    /// Blocks of swap space on the host.
    #[arg(long, value_name = "N", default_value_t = 0)]
    swap_blocks: u32,
    /// How sequences give way: auto (the quicker way by the cost model), swap or recompute.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = preemption)]
    preemption_mode: Preemption,
    /// When a request may start: max-utilization or guaranteed.
    #[arg(long, value_name = "MODE", default_value = "max-utilization", value_parser = capacity_mode)]
    capacity_mode: CapacityMode,
    /// What requests give as max_tokens where the trace does not say; by default what they generate.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Without a prefix cache.
    #[arg(long)]
    no_enable_prefix_caching: bool,
    /// Each step is finished before the next is planned.
    #[arg(long)]
    no_async_scheduling: bool,
    /// How long steps take, as `quire trace fit` writes it; by default Qwen2.5-7B in bf16 on an H200.
    #[arg(long, value_name = "FILE")]
    cost_model: Option<PathBuf>,
}

/// The pool where nobody says how large it is.
const POOL_TOKENS: u64 = 1 << 20;

impl LimitArgs {
    fn setup(&self, trace: &Trace) -> Result<Setup> {
        if self.preemption_mode == Preemption::Swap && self.swap_blocks == 0 {
            return Err(Error::NoSwapSpace { flag: "--swap-blocks" });
        }
        let cost = read_cost_model(self.cost_model.as_deref())?;
        let num_blocks = match self.blocks {
            Some(num_blocks) => num_blocks,
            None => self.blocks_of(&cost)?,
        };
        // A limit that is no tighter than the longest request refuses none for its length.
        let max_model_len = self.max_model_len.unwrap_or_else(|| trace.max_len().saturating_add(1));
        let limits = SchedulerConfig {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_prefill_chunk: self.max_prefill_chunk,
            max_num_partial_prefills: self.max_num_partial_prefills,
            preemption: self.preemption_mode,
            capacity_mode: self.capacity_mode,
            ..SchedulerConfig::new(max_model_len)
        };
        let cache = KvCacheConfig {
            enable_prefix_caching: !self.no_enable_prefix_caching,
            num_swap_blocks: self.swap_blocks,
            ..KvCacheConfig::new(num_blocks, self.block_size)
        };
        let max_open_steps = if self.no_async_scheduling { 1 } else { 2 };
        Ok(Setup { cost, max_open_steps, max_output_tokens: self.max_tokens, ..Setup::new(limits, cache) })
    }

    /// Blocks of the pool that the cost model's machine holds.
    fn blocks_of(&self, cost: &CostModel) -> Result<u32> {
        let num_tokens = cost.kv_pool_tokens.unwrap_or(POOL_TOKENS);
        match num_tokens / u64::from(self.block_size.max(1)) {
            0 => Err(Error::NoBlock { num_tokens, block_size: self.block_size }),
            num_blocks => Ok(u32::try_from(num_blocks).unwrap_or(u32::MAX)),
        }
    }
}

pub(crate) fn run(context: &Context<'_>, args: &SimulateArgs) -> Result<()> {
    let policies = &context.app.policies;
    // A name that nobody knows is told before a long run.
    args.policy.iter().try_for_each(|name| policy(policies, name).map(drop))?;
    let read = [Some(&*args.load.trace), args.limits.cost_model.as_deref()];
    args.plot.as_ref().map_or(Ok(()), |plot| check_output(plot.path(), read.into_iter().flatten()))?;
    let trace = args.load.read()?;
    let setup = args.limits.setup(&trace)?;
    let arrivals = args.arrivals.times(&args.load, &trace)?;
    let mut num_refused = 0;
    let mut stdout = io::stdout().lock();
    for name in &args.policy {
        let run = simulate(&trace, &arrivals, &setup, policy(policies, name)?)?;
        num_refused = run.report.num_refused.max(num_refused);
        match args.output_format {
            OutputFormat::Json => write_line(&mut stdout, &run.report)?,
            OutputFormat::Text => writeln!(stdout, "{}", run.report).map_err(Error::Stdout)?,
        }
        if let Some(picture) = &args.plot {
            let title = format!("{name}, {} requests, {}", trace.requests.len(), setup.cost.name);
            picture.write(&plot::svg(&run.timeline, &title))?;
        }
    }
    match num_refused {
        0 => Ok(()),
        num_refused => Err(Error::SomeRefused { num_refused, num_requests: trace.requests.len() }),
    }
}

fn preemption(text: &str) -> Result<Preemption, &'static str> {
    match text {
        "auto" => Ok(Preemption::Auto),
        "swap" => Ok(Preemption::Swap),
        "recompute" => Ok(Preemption::Recompute),
        _ => Err("expected auto, swap or recompute"),
    }
}

fn capacity_mode(text: &str) -> Result<CapacityMode, &'static str> {
    let known = CapacityMode::NAMES.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, mode)| mode).ok_or("expected max-utilization or guaranteed")
}
