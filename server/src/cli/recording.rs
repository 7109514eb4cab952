//! `quire trace record`, `show`, `replay`, `plot` and `fit`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use quire_engine::{Llm, Prompt, Request, RequestEvent, SamplingParams};
use quire_scheduler::PolicyRegistry;
use quire_scheduler::cost::{self, CostModel};
use quire_scheduler::record::{RecordedStep, Recording};
use quire_scheduler::simulate::{Report, Setup, Simulated, simulate};
use quire_scheduler::trace::{Trace, TraceRequest};
use serde::Serialize;

use super::Context;
use super::load::{in_recording, policy, positive, read_cost_model, read_recording, write_file, write_plot};
use super::model::ModelArgs;
use super::output::{OutputFormat, write_line};
use super::simulate::LoadArgs;
use crate::error::{Error, Result};
use crate::start;

/// Prompts are made-up tokens, alike where the trace says that they share a prefix. Without a rate all requests are queued
/// before the first step, so that the run is the same every time.
#[derive(Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Requests that come in a second.
    #[arg(long, value_name = "R", value_parser = positive)]
    request_rate: Option<f64>,
    /// Where the recording goes.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The recording.
    file: PathBuf,
    /// Every step, too.
    #[arg(long)]
    steps: bool,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
}

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// The recording.
    file: PathBuf,
    /// A policy in place of the recorded one: the recorded load is simulated under both.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// How long steps take then; by default as fitted to the recording.
    #[arg(long, value_name = "FILE", requires = "policy")]
    cost_model: Option<PathBuf>,
    /// Prints the rows of every step.
    #[arg(long, conflicts_with = "policy")]
    decisions: bool,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
}

#[derive(Args)]
pub(crate) struct PlotArgs {
    /// The recording.
    file: PathBuf,
    /// Where the picture goes.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Args)]
pub(crate) struct FitArgs {
    /// Recordings of one model on one machine.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the cost model goes; only the report is printed without it.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What it is called.
    #[arg(long, value_name = "NAME", default_value = "fitted")]
    name: String,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
}

/// The made-up ids lie below this, and below the size of the vocabulary.
const MAX_TOKEN_ID: usize = 150_000;

pub(super) fn record(context: &Context<'_>, args: &RecordArgs) -> Result<()> {
    // A wrong trace is told before a model is loaded.
    let trace = args.load.read()?;
    let (options, parts) = args.model.resolve(context, None)?;
    let llm = start::llm(options, &parts)?;
    let ids = MAX_TOKEN_ID.min(llm.model().vocab_size);
    let requests: Vec<_> =
        trace.requests.iter().enumerate().map(|(index, one)| request(one, index, ids)).collect();
    let started = Instant::now();
    match args.request_rate {
        None => llm.generate_each(requests).into_iter().try_for_each(|result| result.map(drop))?,
        Some(rate) => run_at(&llm, &trace, requests, rate)?,
    }
    let elapsed_s = started.elapsed().as_secs_f64();
    let recording = llm.flight_recorder().recording();
    write_file(&args.output, &recording.to_bytes())?;
    let summary = recording.summary().map_err(|error| in_recording(&args.output, error))?;
    writeln!(io::stdout(), "{summary}elapsed     {elapsed_s:.3} s").map_err(Error::Stdout)
}

/// Tokens are equal where the trace says so; else they differ from request to request and from place to place.
fn request(of: &TraceRequest, index: usize, ids: usize) -> Request {
    let token = |position: u32| {
        let owner = of.token(index, position) as usize;
        ((owner * 7919 + position as usize * 104_729) % ids) as u32
    };
    let params = SamplingParams {
        ignore_eos: true,
        max_tokens: Some(of.output_tokens.into()),
        ..SamplingParams::greedy(1)
    };
    Request::new(Prompt::TokenIds((0..of.prompt_tokens).map(token).collect()), params)
}

/// Hands requests in as they come.
fn run_at(llm: &Llm, trace: &Trace, requests: Vec<Request>, rate: f64) -> Result<()> {
    let started = Instant::now();
    let mut streams = Vec::with_capacity(requests.len());
    for (request, arrival) in requests.into_iter().zip(trace.arrival_times(Some(rate))) {
        let at = started + Duration::from_nanos(arrival.as_nanos());
        thread::sleep(at.saturating_duration_since(Instant::now()));
        streams.push(llm.stream(request)?);
    }
    for mut stream in streams {
        while let Some(event) = stream.blocking_next() {
            if let RequestEvent::Failed(error) = event {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

pub(super) fn show(args: &ShowArgs) -> Result<()> {
    let recording = read_recording(&args.file)?;
    let named = |error| in_recording(&args.file, error);
    let summary = recording.summary().map_err(named)?;
    let steps = if args.steps { recording.steps().map_err(named)? } else { Vec::new() };
    let mut stdout = io::stdout().lock();
    match args.output_format {
        OutputFormat::Json => {
            write_line(&mut stdout, &summary)?;
            steps.iter().try_for_each(|step| write_line(&mut stdout, step))
        }
        OutputFormat::Text => {
            let limits = format!("limits      {:?}\n", recording.scheduler_config());
            write!(stdout, "{summary}{limits}").map_err(Error::Stdout)?;
            steps.iter().try_for_each(|step| write_step(&mut stdout, step)).map_err(Error::Stdout)
        }
    }
}

fn write_step(to: &mut impl Write, step: &RecordedStep) -> io::Result<()> {
    let RecordedStep { step: number, planned_s, work, device_us, cycle_us, .. } = step;
    writeln!(
        to,
        "step={number} at={planned_s:.6} rows={} prefill={} decode={} context={} running={} waiting={} swapped={} \
         blocks={} device_us={device_us} cycle_us={cycle_us:.0}",
        work.num_rows,
        work.prefill_tokens,
        work.num_decodes,
        work.context_tokens,
        step.num_running,
        step.num_waiting,
        step.num_swapped,
        step.live_blocks
    )
}

pub(super) fn replay(context: &Context<'_>, args: &ReplayArgs) -> Result<()> {
    let recording = read_recording(&args.file)?;
    let policies = &context.app.policies;
    match &args.policy {
        Some(other) => what_if(args, &recording, policies, other),
        None => replay_exactly(args, &recording, policies),
    }
}

#[derive(Serialize)]
struct ReplayReport {
    first_step: u64,
    num_steps: u64,
    num_preemptions: u64,
    decisions: String,
    all_equal: bool,
}

fn replay_exactly(args: &ReplayArgs, recording: &Recording, policies: &PolicyRegistry) -> Result<()> {
    let named = |error| in_recording(&args.file, error);
    let policy = recording.policy(policies).map_err(named)?;
    let mut stdout = io::stdout().lock();
    let mut broken = None;
    let replayed = recording.replay_with(policy, |plan, _| {
        if args.decisions && broken.is_none() {
            for row in &plan.rows {
                let written = writeln!(
                    stdout,
                    "step={} seq_id={} kind={:?} start={} tokens={} new_blocks={:?}",
                    plan.step, row.seq, row.kind, row.start, row.num_tokens, row.new_blocks
                );
                broken = written.err();
            }
        }
    });
    let replayed = replayed.map_err(named)?;
    if let Some(error) = broken {
        return Err(Error::Stdout(error));
    }
    let report = ReplayReport {
        first_step: replayed.first_step,
        num_steps: replayed.num_steps,
        num_preemptions: replayed.stats.num_preemptions,
        decisions: replayed.digest.to_string(),
        all_equal: true,
    };
    match args.output_format {
        OutputFormat::Json => write_line(&mut stdout, &report),
        OutputFormat::Text => writeln!(
            stdout,
            "{} steps from step {} on replayed, every decision as recorded ({}); {} preemptions since the start",
            report.num_steps, report.first_step, report.decisions, report.num_preemptions
        )
        .map_err(Error::Stdout),
    }
}

/// The recorded load under the recorded policy and under another, both simulated: so that they are compared on equal terms.
fn what_if(args: &ReplayArgs, recording: &Recording, policies: &PolicyRegistry, other: &str) -> Result<()> {
    let named = |error| in_recording(&args.file, error);
    let other = policy(policies, other)?;
    let recorded = recording.policy(policies).map_err(named)?;
    let (trace, arrivals) = recording.trace().map_err(named)?;
    let limits = recording.scheduler_config().clone();
    let setup = Setup { cost: model_of(args, recording)?, ..Setup::new(limits, recording.cache_config()) };
    let mut stdout = io::stdout().lock();
    for policy in [recorded, other] {
        let Simulated { report, .. } = simulate(&trace, &arrivals, &setup, policy)?;
        write_report(&mut stdout, args.output_format, &report)?;
    }
    Ok(())
}

fn model_of(args: &ReplayArgs, recording: &Recording) -> Result<CostModel> {
    if args.cost_model.is_some() {
        return read_cost_model(args.cost_model.as_deref());
    }
    let (samples, host_us) = recording.samples().map_err(|error| in_recording(&args.file, error))?;
    Ok(cost::fit(&samples, host_us, "fitted to the recording")?.model)
}

fn write_report(to: &mut impl Write, format: OutputFormat, report: &Report) -> Result<()> {
    match format {
        OutputFormat::Json => write_line(to, report),
        OutputFormat::Text => writeln!(to, "{report}").map_err(Error::Stdout),
    }
}

pub(super) fn plot(args: &PlotArgs) -> Result<()> {
    let recording = read_recording(&args.file)?;
    let timeline = recording.timeline().map_err(|error| in_recording(&args.file, error))?;
    let title = format!("{}, policy {}", args.file.display(), recording.policy_name());
    write_plot(&args.output, &timeline, &title)
}

pub(super) fn fit(args: &FitArgs) -> Result<()> {
    let mut runs = Vec::new();
    for file in &args.files {
        let (samples, host_us) =
            read_recording(file)?.samples().map_err(|error| in_recording(file, error))?;
        runs.push(cost::Run { samples, host_us });
    }
    let report = cost::fit_runs(&runs, &args.name)?;
    if let Some(path) = &args.output {
        let text =
            serde_json::to_string_pretty(&report.model).map_err(|error| Error::Stdout(error.into()))?;
        write_file(path, text.as_bytes())?;
    }
    let mut stdout = io::stdout().lock();
    match args.output_format {
        OutputFormat::Json => write_line(&mut stdout, &report),
        OutputFormat::Text => write_fit(&mut stdout, &report).map_err(Error::Stdout),
    }
}

fn write_fit(to: &mut impl Write, report: &cost::FitReport) -> io::Result<()> {
    for (name, term) in report.model.terms() {
        writeln!(to, "{name:<18} {term:.4}")?;
    }
    let percent = |share: f64| 100.0 * share;
    writeln!(to, "of step_us, the host adds {:.1}", report.host_us)?;
    writeln!(
        to,
        "{} steps: mean error {:.1} %, nine of ten within {:.1} %, sum {:+.2} %, R² {:.4}",
        report.num_steps,
        percent(report.mean_error),
        percent(report.p90_error),
        percent(report.total_error),
        report.r_squared
    )
}
