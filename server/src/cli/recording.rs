//! `quire trace show`, `replay`, `plot` and `fit`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use quire_scheduler::PolicyRegistry;
use quire_scheduler::cost::{self, CostModel};
use quire_scheduler::plot;
use quire_scheduler::record::{RecordedStep, Recording, RecordingError, Summary};
use quire_scheduler::simulate::{Report, Setup, SimulateError, Simulated, simulate};
use quire_scheduler::trace::Trace;
use serde::Serialize;

use super::Context;
use super::load::{check_output, in_recording, policy, read_cost_model, read_recording, write_file};
use super::output::{OutputFormat, write_line};
use super::picture::Picture;
use crate::error::{Error, Result};

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
    #[arg(long, short, value_name = "FILE.svg|png", value_parser = Picture::parse)]
    output: Picture,
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
    let summary = recording.summary().map_err(named)?;
    left_out(&summary, trace.requests.len()).iter().for_each(|note| eprintln!("{note}"));
    if !has_one_tenant(&trace) {
        eprintln!("tenants are named by hashes: a recording holds no names");
    }
    let mut stdout = io::stdout().lock();
    let mut decisions = Vec::new();
    for policy in [recorded, other] {
        let run = simulate(&trace, &arrivals, &setup, policy);
        let Simulated { report, .. } = run.map_err(|error| in_header(args, error))?;
        write_report(&mut stdout, args.output_format, &report)?;
        decisions.push(report.decisions);
    }
    if decisions[0] == decisions[1] {
        let why = if has_one_tenant(&trace) { ", which has one tenant" } else { "" };
        eprintln!("both policies decide alike on this load{why}");
    }
    Ok(())
}

/// What of the recording is no part of the load, in words.
fn left_out(summary: &Summary, num_simulated: usize) -> Option<String> {
    let Summary { num_requests, num_sequences, .. } = *summary;
    let num_others = num_requests.saturating_sub(num_simulated as u64);
    let num_forked = num_sequences.saturating_sub(num_requests);
    (num_others + num_forked > 0).then(|| {
        format!(
            "{num_simulated} of {num_requests} recorded requests are simulated, each as its first output alone: {num_others} were \
             given up or had not ended, {num_forked} further outputs are no part of the load"
        )
    })
}

fn has_one_tenant(trace: &Trace) -> bool {
    let mut tenants = trace.requests.iter().map(|request| request.tenant);
    let first = tenants.next();
    tenants.all(|tenant| Some(tenant) == first)
}

/// Limits and pool are those of the recording's header.
fn in_header(args: &ReplayArgs, error: SimulateError) -> Error {
    match error {
        SimulateError::Config(_) | SimulateError::Cache(_) => {
            in_recording(&args.file, RecordingError::Config { reason: error.to_string() })
        }
        error => error.into(),
    }
}

fn model_of(args: &ReplayArgs, recording: &Recording) -> Result<CostModel> {
    if args.cost_model.is_some() {
        return read_cost_model(args.cost_model.as_deref());
    }
    let (samples, host_us) = recording.samples().map_err(|error| in_recording(&args.file, error))?;
    let fitted = cost::fit(&samples, host_us, "fitted to the recording").map_err(|source| {
        let recordings = args.file.display().to_string();
        Error::Fit { recordings, reason: source, hint: ": give a cost model, --cost-model FILE" }
    })?;
    Ok(fitted.model)
}

fn write_report(to: &mut impl Write, format: OutputFormat, report: &Report) -> Result<()> {
    match format {
        OutputFormat::Json => write_line(to, report),
        OutputFormat::Text => writeln!(to, "{report}").map_err(Error::Stdout),
    }
}

pub(super) fn plot(args: &PlotArgs) -> Result<()> {
    check_output(args.output.path(), [&*args.file])?;
    let recording = read_recording(&args.file)?;
    let timeline = recording.timeline().map_err(|error| in_recording(&args.file, error))?;
    let title = format!("{}, policy {}", args.file.display(), recording.policy_name());
    args.output.write(&plot::svg(&timeline, &title))
}

pub(super) fn fit(args: &FitArgs) -> Result<()> {
    let read = args.files.iter().map(PathBuf::as_path);
    args.output.as_deref().map_or(Ok(()), |path| check_output(path, read))?;
    let mut runs = Vec::new();
    for file in &args.files {
        let (samples, host_us) =
            read_recording(file)?.samples().map_err(|error| in_recording(file, error))?;
        runs.push(cost::Run { samples, host_us });
    }
    let report = cost::fit_runs(&runs, &args.name).map_err(|source| {
        let files: Vec<_> = args.files.iter().map(|file| file.display().to_string()).collect();
        Error::Fit { recordings: files.join(", "), reason: source, hint: ": record more" }
    })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_what_if_leaves_out_is_counted() {
        let summary = Summary {
            policy: String::new(),
            num_requests: 30,
            num_sequences: 30,
            num_finished: 12,
            num_aborted: 10,
            num_steps: 0,
            num_tokens: 0,
            duration_s: 0.0,
            busy_s: 0.0,
            device_s: 0.0,
            num_bytes: 0,
            dropped_bytes: 0,
            decisions: String::new(),
        };
        assert_eq!(left_out(&summary, 30), None);
        let note = left_out(&summary, 12).expect("18 are missing");
        assert!(note.contains("12 of 30 recorded") && note.contains(": 18 were given up"), "{note}");
        let forked = Summary { num_sequences: 33, ..summary };
        let note = left_out(&forked, 30).expect("three were forked");
        assert!(
            note.contains("30 of 30") && note.ends_with(", 3 further outputs are no part of the load"),
            "{note}"
        );
    }
}
