//! `quire check`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use quire_engine::{Bytes, check_model};
use quire_models::check::{CheckOptions, CheckReport, Depth, Finding, Severity};
use serde::Serialize;

use super::Context;
use super::output::{write_field, write_line};
use super::source::SourceArgs;
use crate::error::{Error, Result, counted};
use crate::model_source::ResolvedModel;

/// Exit codes: 0 the model can be loaded, 1 it cannot, 2 the command line is wrong.
#[derive(Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Branch, tag or commit of a model of the hub, as @REVISION behind its name.
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Reads every weight, not only a few places of each, for NaN and infinity.
    #[arg(long, conflicts_with = "headers")]
    full: bool,
    /// Reads no weights: headers, configuration and texts only.
    #[arg(long)]
    headers: bool,
    /// Writes one JSON object.
    #[arg(long)]
    json: bool,
}

/// What was found. The fields are an interface: programs read them.
#[derive(Serialize)]
struct Line<'a> {
    ok: bool,
    path: String,
    format: Option<&'a str>,
    architecture: Option<&'a str>,
    quantization: Option<&'a str>,
    num_files: usize,
    num_file_bytes: u64,
    num_parameters: Option<u64>,
    output_head: Option<&'a str>,
    /// headers, samples or full.
    depth: &'a str,
    num_tensors_read: usize,
    num_bytes_read: u64,
    findings: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    severity: &'a str,
    kind: &'a str,
    file: String,
    tensor: Option<&'a str>,
    bytes: Option<u64>,
    message: &'a str,
}

pub(crate) fn run(context: &Context<'_>, args: &CheckArgs) -> Result<()> {
    let depth = match (args.full, args.headers) {
        (true, _) => Depth::Full,
        (_, true) => Depth::Headers,
        _ => Depth::Samples,
    };
    let model = match fetch(context, args) {
        Ok(model) => model,
        Err(error) => {
            if args.json {
                write_line(&mut io::stdout().lock(), &Line::of(&not_found(args, &error), depth))?;
            }
            return Err(error);
        }
    };
    let options = CheckOptions { depth, ..CheckOptions::default() };
    let report = check_model(&model.path, &options, &context.app.models);
    let mut stdout = io::stdout().lock();
    match args.json {
        true => write_line(&mut stdout, &Line::of(&report, depth))?,
        false => write!(stdout, "{}", Table(&report)).map_err(Error::Stdout)?,
    }
    match report.problems().count() {
        0 => Ok(()),
        num_problems => Err(Error::ModelProblems { path: model.path, num_problems }),
    }
}

fn fetch(context: &Context<'_>, args: &CheckArgs) -> Result<ResolvedModel> {
    let source = args.source.model(args.revision.as_deref())?;
    Ok(source.fetch_in(&args.source.env(&context.env))?)
}

/// What a program that reads the report gets to know where there is nothing to check.
fn not_found(args: &CheckArgs, error: &Error) -> CheckReport {
    let path = PathBuf::from(args.source.name().unwrap_or_default());
    let mut report = CheckReport { path: path.clone(), ..CheckReport::default() };
    report.add(Finding {
        severity: Severity::Problem,
        kind: "not-found",
        file: path,
        tensor: None,
        num_bytes: None,
        message: error.to_string(),
    });
    report
}

impl<'a> Line<'a> {
    fn of(report: &'a CheckReport, depth: Depth) -> Self {
        Self {
            ok: report.is_ok(),
            path: report.path.display().to_string(),
            format: report.format,
            architecture: report.architecture.as_deref(),
            quantization: report.quantization,
            num_files: report.files.len(),
            num_file_bytes: file_bytes(report),
            num_parameters: report.weights.as_ref().map(|weights| weights.num_parameters),
            output_head: head(report),
            depth: match depth {
                Depth::Headers => "headers",
                Depth::Samples => "samples",
                Depth::Full => "full",
            },
            num_tensors_read: report.scan.num_tensors,
            num_bytes_read: report.scan.num_bytes,
            findings: report.findings.iter().map(Row::of).collect(),
        }
    }
}

impl<'a> Row<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            severity: severity(finding.severity),
            kind: finding.kind,
            file: finding.file.display().to_string(),
            tensor: finding.tensor.as_deref(),
            bytes: finding.num_bytes,
            message: &finding.message,
        }
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Problem => "problem",
        Severity::Note => "note",
    }
}

fn head(report: &CheckReport) -> Option<&'static str> {
    use quire_models::OutputHead::{Own, Tied};
    report.head.map(|head| match head {
        Tied => "tied",
        Own => "own",
    })
}

fn file_bytes(report: &CheckReport) -> u64 {
    report.files.iter().map(|(_, num_bytes)| num_bytes).sum()
}

/// For people: what the model is, then a line for each finding.
struct Table<'a>(&'a CheckReport);

impl std::fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let report = self.0;
        let mut line = |name: &str, value: String| write_field(f, name, &value);
        let kind = [report.format, report.architecture.as_deref(), report.quantization];
        let kind: Vec<_> = kind.into_iter().flatten().collect();
        line("model", format!("{} ({})", report.path.display(), kind.join(", ")))?;
        line("files", format!("{} files, {}", report.files.len(), Bytes(file_bytes(report))))?;
        if let Some(weights) = &report.weights {
            line("weights", format!("{} parameters, {}", weights.num_parameters, Bytes(weights.num_bytes)))?;
        }
        if let Some(head) = head(report) {
            line("output head", head.to_owned())?;
        }
        let scan = report.scan;
        line("read", format!("{} of {} tensors", Bytes(scan.num_bytes), scan.num_tensors))?;
        let num_problems = report.problems().count();
        let num_notes = report.findings.len() - num_problems;
        line("result", format!("{}, {}", counted(num_problems, "problem"), counted(num_notes, "note")))?;
        if report.findings.is_empty() {
            return Ok(());
        }
        write_rows(f, &report.findings, &report.path)
    }
}

/// As wide as the widest entry of each column; the message comes last, because it is a sentence.
fn write_rows(f: &mut std::fmt::Formatter<'_>, findings: &[Finding], model: &Path) -> std::fmt::Result {
    let row = |finding: &Finding| {
        let inside = finding.file.strip_prefix(model).ok().filter(|rest| !rest.as_os_str().is_empty());
        let file = inside
            .or(finding.file.file_name().map(Path::new))
            .map_or_else(String::new, |file| file.display().to_string());
        [
            severity(finding.severity).to_owned(),
            finding.kind.to_owned(),
            file,
            finding.tensor.clone().unwrap_or_else(|| "-".to_owned()),
            finding.num_bytes.map_or_else(|| "-".to_owned(), |num_bytes| num_bytes.to_string()),
            finding.message.replace('\n', " "),
        ]
    };
    let head = ["", "KIND", "FILE", "TENSOR", "BYTES", "WHAT"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(findings.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3), width(4)];
    writeln!(f)?;
    for [severity, kind, file, tensor, num_bytes, message] in &rows {
        let [w0, w1, w2, w3, w4] = widths;
        writeln!(f, "{severity:<w0$}  {kind:<w1$}  {file:<w2$}  {tensor:<w3$}  {num_bytes:>w4$}  {message}")?;
    }
    Ok(())
}
