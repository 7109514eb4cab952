//! Developer commands of the Quire repository: `cargo xtask help`.
//!
//! Depends on no crate of the engine: it drives `cargo` and the programs that `cargo` builds.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod artifacts;
mod bench;
mod cache;
mod cuda;
mod error;
mod fetch;
mod golden;
mod kernels;
mod package;
mod peer;
mod print;
mod process;
mod served;
mod spread;
mod startup;
mod test;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;
use crate::print::note;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of the Quire repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, lints and documentation, warnings denied
    Check,
    /// What CI runs: `check`, then every test; fetches the default model for the golden tests
    Test(test::Options),
    /// Fetch the models that the tests use into the cache folder
    FetchModels,
    /// Compare with the reference outputs, and from a Hugging Face folder made of the same weights too
    Golden(golden::Options),
    /// Measure whole runs of the engine, alone or in turn with a peer
    Bench(bench::Options),
    /// Measure the server under load, in turn with the engine alone and with a peer's server
    BenchServe(served::Options),
    /// Compile the CUDA kernels, which nothing else needs nvcc for
    BuildKernels(kernels::Options),
    /// Make a folder of GPU tests that runs on a machine without Rust
    PackageGpuTests(package::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Check => test::check(),
        Command::Test(options) => test::run(&options),
        Command::FetchModels => fetch::all().map(drop),
        Command::Golden(options) => golden::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::BenchServe(options) => served::run(&options),
        Command::BuildKernels(options) => kernels::run(&options),
        Command::PackageGpuTests(options) => package::run(&options),
    }
}
