//! `quire tune`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use quire_scheduler::tune::{Choice, Goal, Limit, Memory, Outcome, Tuned, Tuner, presets};
use serde::Serialize;

use super::Context;
use super::load::{policy, positive, read_cost_model};
use super::output::{OutputFormat, write_line};
use super::simulate::LoadArgs;
use super::values::{bytes, some_bytes};
use crate::error::{Error, Result};

/// Searches max_num_seqs, max_num_batched_tokens, block_size, max_model_len and gpu_memory_utilization for the most requests
/// a second of the trace's kind at which 99 of 100 requests are served in time, by simulation; says what each other choice
/// costs, and prints settings for short chats and for long contexts. Exit code 1 where nothing serves in time.
#[derive(Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Milliseconds to the first token that 99 of 100 requests may take.
    #[arg(long, value_name = "MS", default_value_t = 500.0, value_parser = positive)]
    max_ttft_ms: f64,
    /// Milliseconds from token to token that 99 of 100 requests may take.
    #[arg(long, value_name = "MS", default_value_t = 20.0, value_parser = positive)]
    max_tpot_ms: f64,
    /// The scheduling policy.
    #[arg(long, value_name = "NAME", default_value = "fcfs")]
    policy: String,
    /// How long steps take, as `quire trace fit` writes it; by default Qwen2.5-7B in bf16 on an H200.
    #[arg(long, value_name = "FILE")]
    cost_model: Option<PathBuf>,
    /// Tokens of the KV pool, whatever the settings; by default the pool is what memory leaves.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..),
        conflicts_with_all = ["device_memory", "model_memory", "kv_token_bytes", "step_token_bytes"])]
    kv_tokens: Option<u64>,
    /// The device's memory, such as 139.8GiB; by default that of an H200.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    device_memory: Option<u64>,
    /// What weights and the like take of it; by default Qwen2.5-7B in bf16. `quire inspect` tells it.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    model_memory: Option<u64>,
    /// Keys and values of a token.
    #[arg(long, value_name = "BYTES", value_parser = some_bytes)]
    kv_token_bytes: Option<u64>,
    /// Scratch for a token of a step.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    step_token_bytes: Option<u64>,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
}

#[derive(Serialize)]
struct Report<'a> {
    goal: Goal,
    memory: Memory,
    tuned: &'a Tuned,
    presets: Vec<PresetLine>,
}

#[derive(Serialize)]
struct PresetLine {
    name: &'static str,
    purpose: String,
    flags: String,
}

impl TuneArgs {
    fn memory(&self) -> Memory {
        let usual = Memory::default();
        self.kv_tokens.map_or(
            Memory {
                device_bytes: self.device_memory.unwrap_or(usual.device_bytes),
                model_bytes: self.model_memory.unwrap_or(usual.model_bytes),
                step_token_bytes: self.step_token_bytes.unwrap_or(usual.step_token_bytes),
                kv_token_bytes: self.kv_token_bytes.unwrap_or(usual.kv_token_bytes),
            },
            Memory::of_pool,
        )
    }
}

pub(crate) fn run(context: &Context<'_>, args: &TuneArgs) -> Result<()> {
    let policies = &context.app.policies;
    policy(policies, &args.policy)?;
    let trace = args.load.read()?;
    let (memory, goal) =
        (args.memory(), Goal { max_ttft_ms: args.max_ttft_ms, max_tpot_ms: args.max_tpot_ms });
    let cost = read_cost_model(args.cost_model.as_deref())?;
    let tuner = Tuner {
        trace: &trace,
        cost,
        memory,
        goal,
        policies,
        policy: &args.policy,
        min_seconds: Tuner::MIN_SECONDS,
    };
    let tuned = tuner.tune()?;
    let presets = presets(&tuned, &memory).into_iter().map(|preset| PresetLine {
        name: preset.name,
        flags: preset.to_string(),
        purpose: preset.purpose,
    });
    let report = Report { goal, memory, tuned: &tuned, presets: presets.collect() };
    let mut stdout = io::stdout().lock();
    match args.output_format {
        OutputFormat::Json => write_line(&mut stdout, &report)?,
        OutputFormat::Text => write_text(&mut stdout, &report).map_err(Error::Stdout)?,
    }
    match tuned.best.outcome {
        Outcome::Serves => Ok(()),
        Outcome::NoRoom => Err(Error::PoolTooSmall { longest: trace.max_len() }),
        _ => Err(Error::GoalNotReached),
    }
}

fn write_text(to: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    let Report { goal, tuned, presets, .. } = report;
    writeln!(
        to,
        "goal: p99 TTFT {} ms, p99 TPOT {} ms; {} runs",
        goal.max_ttft_ms, goal.max_tpot_ms, tuned.num_runs
    )?;
    if !tuned.is_reached() {
        return Ok(());
    }
    writeln!(
        to,
        "{:<32} {:>10} {:>8} {:>9} {:>9} {:>8} {:>7}  limited by",
        "", "requests/s", "", "TTFT p99", "TPOT p99", "preempt", "waste"
    )?;
    write_choice(to, "best", &tuned.best, &tuned.best)?;
    for (name, choice) in &tuned.alternatives {
        write_choice(to, &format!("{name} {}", value(name, choice)), choice, &tuned.best)?;
    }
    for preset in presets {
        writeln!(to, "\n{}: {}\n  {}", preset.name, preset.purpose, preset.flags)?;
    }
    Ok(())
}

fn write_choice(to: &mut impl Write, name: &str, choice: &Choice, best: &Choice) -> io::Result<()> {
    match choice.outcome {
        Outcome::Serves => {}
        Outcome::NoRoom => return writeln!(to, "{name:<32} no room: the pool is too small for it"),
        _ => return writeln!(to, "{name:<32} too slow at any rate"),
    }
    let change = 100.0 * (choice.requests_per_s / best.requests_per_s.max(1e-9) - 1.0);
    writeln!(
        to,
        "{name:<32} {:>10.2} {change:>+7.1}% {:>9.1} {:>9.2} {:>8} {:>6.1}%  {}",
        choice.requests_per_s,
        choice.ttft_p99_ms,
        choice.tpot_p99_ms,
        choice.num_preemptions,
        100.0 * choice.waste,
        choice.limit.map_or("nothing", Limit::name)
    )
}

/// The value of the setting in which a choice differs.
fn value(name: &str, choice: &Choice) -> String {
    let settings = choice.settings;
    match name {
        "max_num_seqs" => settings.max_num_seqs.to_string(),
        "max_num_batched_tokens" => settings.max_num_batched_tokens.to_string(),
        "block_size" => settings.block_size.to_string(),
        "max_model_len" => settings.max_model_len.to_string(),
        "gpu_memory_utilization" => format!("{:.2}", f64::from(settings.memory_percent) / 100.0),
        _ => String::new(),
    }
}
