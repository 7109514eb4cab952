//! The command line: `generate`, `chat`, `serve`, `check`, `inspect`, `render`, `bench`,
//! `tune-kernels`, `trace`, `simulate`, `tune`, `top`.

mod beams;
pub(crate) mod bench;
mod chat;
mod check;
mod config_file;
mod engine;
mod form;
mod generate;
pub(crate) mod input;
mod inspect;
mod load;
mod model;
mod output;
mod picture;
mod record;
mod recording;
mod remote;
mod render;
mod sampling;
mod serve;
mod served_names;
mod simulate;
mod source;
mod spelling;
mod top;
mod trace;
mod tune;
mod tune_settings;
mod values;
mod vllm_flags;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::app::App;
use crate::env::Env;
use crate::error::{Result, with_causes};
use crate::logging;

/// LLM inference with a paged KV cache.
///
/// Results go to standard output, everything else to standard error. Exit codes: 0 all went well, 1 the run failed,
/// 2 the command line or the input is wrong.
#[derive(Parser)]
#[command(name = "quire", version)]
struct Cli {
    /// Which log lines are written: off, error, warn, info, debug, trace, or a list of TARGET=LEVEL with the targets
    /// schedule, dispatch, scheduler, engine, executor, kernels, models, server or those of other programs. QUIRE_LOG,
    /// RUST_LOG and VLLM_LOGGING_LEVEL say the same.
    #[arg(long, visible_alias = "log", global = true, value_name = "FILTER")]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continues a prompt, or each request of a file.
    Generate(generate::GenerateArgs),
    /// Talks with a model.
    Chat(chat::ChatArgs),
    /// Says everything that is wrong with a model's files, in one table.
    ///
    /// Exit codes: 0 the model can be loaded, 1 it cannot, 2 the command line is wrong.
    Check(check::CheckArgs),
    /// Says what a model is and what it needs, without loading its weights.
    Inspect(inspect::InspectArgs),
    /// Shows a prompt as the model would read it, as text and as tokens, without running the model.
    Render(render::RenderArgs),
    /// Measures latency and throughput.
    Bench(bench::BenchArgs),
    /// Looks for kernels that are faster on this GPU than those taken by default.
    TuneKernels(tune::TuneArgs),
    /// Looks into what runs left behind: recordings of the scheduler, and what --trace-tensors wrote.
    Trace(trace::TraceArgs),
    /// Runs a trace in virtual time, without a model.
    Simulate(simulate::SimulateArgs),
    /// Finds settings for a goal, by simulation.
    Tune(tune_settings::TuneArgs),
    /// Serves a model over HTTP, with the API of OpenAI as vLLM has it.
    #[command(args_override_self = true)]
    Serve(serve::ServeArgs),
    /// Shows in the terminal what a server is doing.
    Top(top::TopArgs),
}

/// What a command has beside its own flags.
struct Context<'a> {
    app: &'a App,
    env: Env,
}

/// Runs a command line; its first word is the name of the program.
pub(crate) fn run<T: Into<OsString> + Clone>(app: &App, words: impl IntoIterator<Item = T>) -> ExitCode {
    let words = spelling::normalized(words.into_iter().map(Into::into).collect(), &Cli::command());
    let words = served_names::spread(words);
    let words = match config_file::expand(words, &Cli::command()) {
        Ok(words) => words,
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            return ExitCode::from(2);
        }
    };
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no errors.
            let is_usage = error.use_stderr();
            let _ = error.print();
            return ExitCode::from(if is_usage { 2 } else { 0 });
        }
    };
    match run_command(app, cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

fn run_command(app: &App, cli: Cli) -> Result<()> {
    let context = Context { app, env: Env::of_process() };
    // A conversation is read by people: there, and where the result is the report, only warnings break in.
    let default_level = if matches!(cli.command, Command::Generate(_) | Command::Bench(_) | Command::Serve(_))
    {
        "info"
    } else {
        "warn"
    };
    logging::start(cli.log_level.as_deref(), default_level, &context.env)?;
    for warning in context.env.warnings() {
        tracing::warn!(target: "quire::server", "{warning}");
    }
    match cli.command {
        Command::Generate(args) => generate::run(&context, &args),
        Command::Chat(args) => chat::run(&context, &args),
        Command::Check(args) => check::run(&context, &args),
        Command::Inspect(args) => inspect::run(&context, &args),
        Command::Render(args) => render::run(&context, &args),
        Command::Bench(args) => bench::run(&context, &args),
        Command::TuneKernels(args) => tune::run(&args),
        Command::Trace(args) => trace::run(&context, &args),
        Command::Simulate(args) => simulate::run(&context, &args),
        Command::Tune(args) => tune_settings::run(&context, &args),
        Command::Serve(args) => serve::run(&context, &args),
        Command::Top(args) => top::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
