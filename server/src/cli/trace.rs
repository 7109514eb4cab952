//! `quire trace`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::Context;
use super::output::{OutputFormat, write_line};
use super::{record, recording};
use crate::error::{Error, Result};
use crate::trace::{Diff, TraceHeader, TraceReader};

#[derive(Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand)]
enum TraceCommand {
    /// Says where two runs of the same requests part: compares what --trace-tensors wrote of them, op by op.
    Diff(DiffArgs),
    /// Runs a trace's requests on a model and writes what the scheduler was asked and decided.
    Record(record::RecordArgs),
    /// Says what is in a recording.
    Show(recording::ShowArgs),
    /// Makes the recorded decisions again and compares them all; with another policy, simulates what it would have done.
    Replay(recording::ReplayArgs),
    /// Draws a recording as SVG.
    Plot(recording::PlotArgs),
    /// Fits a cost model for `quire simulate` to recorded steps.
    Fit(recording::FitArgs),
}

/// A difference is that of the root mean square, of the mean or of a sampled element, whichever is most, relative to the
/// root mean square. Integers and elements that are not finite have to be the same. Exit code 1 where anything is beyond
/// the tolerance.
#[derive(Args)]
struct DiffArgs {
    /// A trace: the folder or the file.
    a: PathBuf,
    /// The trace that it is compared with.
    b: PathBuf,
    /// How much an output may differ.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = tolerance)]
    tolerance: f64,
    /// How many of the worst differences are told.
    #[arg(long, value_name = "N", default_value_t = 10)]
    worst: usize,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
}

/// What is compared, and how it compares.
#[derive(Serialize)]
struct Report<'a> {
    a: &'a TraceHeader,
    b: &'a TraceHeader,
    #[serde(flatten)]
    diff: Diff,
}

pub(crate) fn run(context: &Context<'_>, args: &TraceArgs) -> Result<()> {
    match &args.command {
        TraceCommand::Diff(args) => diff(args),
        TraceCommand::Record(args) => record::record(context, args),
        TraceCommand::Show(args) => recording::show(args),
        TraceCommand::Replay(args) => recording::replay(context, args),
        TraceCommand::Plot(args) => recording::plot(args),
        TraceCommand::Fit(args) => recording::fit(args),
    }
}

fn diff(args: &DiffArgs) -> Result<()> {
    let (mut a, mut b) = (TraceReader::open(&args.a)?, TraceReader::open(&args.b)?);
    let diff = Diff::of(&mut a, &mut b, args.tolerance, args.worst)?;
    let agrees = diff.agrees();
    let (num_beyond, num_compared, has_parted) = (diff.num_beyond, diff.num_compared, diff.parting.is_some());
    let report = Report { a: a.header(), b: b.header(), diff };
    let mut stdout = io::stdout().lock();
    match args.output_format {
        OutputFormat::Json => write_line(&mut stdout, &report)?,
        OutputFormat::Text => {
            write!(stdout, "a: {}\nb: {}\n{}", report.a, report.b, report.diff).map_err(Error::Stdout)?;
        }
    }
    match (num_compared, agrees) {
        (0, _) => Err(Error::TracesUnlike),
        (_, true) => Ok(()),
        (_, false) => Err(Error::TracesDiffer { num_beyond, num_compared, has_parted }),
    }
}

/// A share of at least 0.
fn tolerance(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share: &f64| *share >= 0.0).ok_or("expected a number of at least 0")
}
