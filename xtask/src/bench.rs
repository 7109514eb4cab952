//! `bench`: whole runs of the engine, and the same runs of a peer in turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fetch;
use crate::peer::LlamaCpp;
use crate::print::out;
use crate::process::{self, cargo, output, output_and_peak};
use crate::spread::Spread;
use crate::startup;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The peer to run in turn with the engine: `llama.cpp`
    #[arg(long)]
    against: Option<String>,
    /// GGUF files to measure with; the default model where none is named
    #[arg(long)]
    model: Vec<PathBuf>,
    /// A file for the peer instead of the engine's own, in the order of `--model`
    #[arg(long)]
    peer_model: Vec<PathBuf>,
    /// How often each measurement is taken, engine and peer in turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Threads of both
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Sequences at once
    #[arg(long, value_delimiter = ',', default_value = "1,8,16")]
    batch: Vec<usize>,
    /// Also the criterion benchmarks of the parts
    #[arg(long)]
    parts: bool,
}

/// Warm: program and model are in the page cache, since the runs before have read them.
const STARTUP: &str = "start to first token [s]";
/// Of the program that answers one prompt with a few tokens.
const STARTUP_MEMORY: &str = "peak memory, short answer [MiB]";
/// Of the run of all other measurements.
const MEMORY: &str = "peak memory, whole run [MiB]";

/// Measured values by name: `prefill 512`, `decode x8`, ...
type Row = BTreeMap<String, f64>;

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.parts {
        process::run(&mut cargo(["bench", "-p", "quire-kernels-cpu"]))?;
    }
    let models = match options.model.as_slice() {
        [] => vec![fetch::SMOLLM2.fetch()?],
        models => models.to_vec(),
    };
    for (i, model) in models.iter().enumerate() {
        let peer_model = options.peer_model.get(i).unwrap_or(model);
        compare(options, model, peer_model)?;
    }
    Ok(())
}

fn compare(options: &Options, model: &Path, peer_model: &Path) -> Result<()> {
    let peer = options.against.as_deref().map(|name| LlamaCpp::named(name, peer_model)).transpose()?;
    out!("model: {}", model.display());
    if let Some(peer) = &peer {
        out!(
            "peer: llama.cpp {} ({}), model {}",
            peer.version(peer_model)?,
            peer.flags,
            peer_model.display()
        );
    }
    process::run(&mut cargo(["build", "--quiet", "--release", "-p", "quire-llm"]))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        ours.push(engine(options, model)?);
        if let Some(peer) = &peer {
            theirs.push(llama_cpp(options, peer, peer_model)?);
        }
    }
    print_table(&ours, &theirs);
    Ok(())
}

/// One run of our own benchmark program.
fn engine(options: &Options, model: &Path) -> Result<Row> {
    let batch = join(&options.batch);
    let threads = options.threads.to_string();
    let mut command = cargo(["bench", "--quiet", "-p", "quire-llm", "--bench", "engine", "--"]);
    command.args(["--threads", &threads, "--batch", &batch, "--model"]).arg(model);
    let text = output(&mut command)?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    let parsed = serde_json::from_str(line);
    let mut row: Row =
        parsed.map_err(|_| Error::NoMeasurement { program: "engine".to_owned(), output: text.clone() })?;
    row.extend(startup_row(startup::quire(model, options.threads))?);
    Ok(row)
}

fn startup_row(command: Command) -> Result<[(String, f64); 2]> {
    let startup = startup::measure(command)?;
    Ok([(STARTUP.to_owned(), startup.seconds), (STARTUP_MEMORY.to_owned(), startup.peak_mib)])
}

/// One run of llama-bench and llama-batched-bench.
fn llama_cpp(options: &Options, peer: &LlamaCpp, model: &Path) -> Result<Row> {
    let threads = options.threads.to_string();
    let mut row = Row::new();
    let mut bench = peer.program("llama-bench");
    bench.args(["-t", &threads, "-p", "512", "-n", "128", "-r", "2", "-o", "json", "-m"]).arg(model);
    let (text, mut peak_mib) = output_and_peak(&mut bench)?;
    let runs: Vec<Value> = serde_json::from_str(&text)
        .map_err(|_| Error::NoMeasurement { program: "llama-bench".to_owned(), output: text.clone() })?;
    for run in &runs {
        let name = if run["n_gen"] == 0 { "prefill 512 [tok/s]" } else { "decode x1 [tok/s]" };
        row.insert(name.to_owned(), run["avg_ts"].as_f64().unwrap_or(f64::NAN));
    }
    let many: Vec<usize> = options.batch.iter().copied().filter(|&n| n > 1).collect();
    if !many.is_empty() {
        let mut batched = peer.program("llama-batched-bench");
        batched.args(["-c", "8192", "-npp", "128", "-ntg", "64", "-t", &threads, "-npl", &join(&many), "-m"]);
        let (table, peak) = output_and_peak(batched.arg(model))?;
        row.extend(batched_rows(&table));
        peak_mib = peak_mib.max(peak);
    }
    row.insert(MEMORY.to_owned(), peak_mib);
    let completion = startup::llama_completion(peer.program("llama-completion"), model, options.threads);
    row.extend(startup_row(completion)?);
    Ok(row)
}

/// Reads the table `| PP | TG | B | N_KV | T_PP | S_PP | T_TG | S_TG | T | S |`.
fn batched_rows(table: &str) -> Row {
    let mut row = Row::new();
    for line in table.lines() {
        let cells: Vec<f64> = line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
        if let [_, _, batch, _, _, _, _, decode, ..] = cells[..] {
            row.insert(format!("decode x{batch} [tok/s]"), decode);
        }
    }
    row
}

fn print_table(ours: &[Row], theirs: &[Row]) {
    out!("{:32} {:>30} {:>30} {:>7}", "", "quire min / median / max", "peer min / median / max", "ratio");
    let names: Vec<&String> = ours.first().into_iter().flat_map(|row| row.keys()).collect();
    for name in names {
        let of = |rows: &[Row]| Spread::of(rows.iter().filter_map(|row| row.get(name).copied()));
        let (us, them) = (of(ours), of(theirs));
        let ratio =
            us.zip(them).map_or(String::new(), |(us, them)| format!("{:.2}", us.median / them.median));
        let show = |spread: Option<Spread>| spread.map_or(String::new(), |spread| spread.to_string());
        out!("{name:32} {:>30} {:>30} {ratio:>7}", show(us), show(them));
    }
}

fn join(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
