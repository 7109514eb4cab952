//! From the start of a program to the first byte of its answer.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::process::{PeakMemory, root};

const PROMPT: &str = "The capital of France is";

/// Our own program, built for release.
pub(crate) fn quire(model: &Path, threads: usize) -> Command {
    let mut command = Command::new(root().join("target/release/quire"));
    command.arg("generate").arg(model).args(["--prompt", PROMPT, "--max-tokens", "8", "--temperature", "0"]);
    command.args(["--threads", &threads.to_string()]);
    command
}

/// The peer's one-shot program with the same prompt.
pub(crate) fn llama_completion(mut program: Command, model: &Path, threads: usize) -> Command {
    program.arg("-m").arg(model).args([
        "-p",
        PROMPT,
        "-n",
        "8",
        "--temp",
        "0",
        "-no-cnv",
        "--no-display-prompt",
    ]);
    program.args(["-t", &threads.to_string()]);
    program
}

/// What a start takes.
pub(crate) struct Startup {
    /// From spawning to the first byte on standard output.
    pub(crate) seconds: f64,
    /// The most memory up to the end.
    pub(crate) peak_mib: f64,
}

/// Starts the program and lets it run to its end.
pub(crate) fn measure(mut command: Command) -> Result<Startup> {
    let program = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = spawned.map_err(|source| Error::Start { program: program.clone(), source })?;
    let peak = PeakMemory::watch(&child);
    let mut output = child.stdout.take().expect("standard output is piped");
    let mut byte = [0];
    let read = output.read(&mut byte);
    let seconds = started.elapsed().as_secs_f64();
    let _ = std::io::copy(&mut output, &mut std::io::sink());
    let status = child.wait().map_err(|source| Error::Start { program: program.clone(), source })?;
    match read {
        Ok(1) if status.success() => Ok(Startup { seconds, peak_mib: peak.mib() }),
        _ => Err(Error::NoMeasurement { program, output: format!("ended with {status}") }),
    }
}
