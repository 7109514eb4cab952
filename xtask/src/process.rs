//! Running programs and showing what is run.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::print::note;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the repository's root").to_owned()
}

/// The `cargo` that runs this program, in the repository's root.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs to the end; output goes where this program's goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    note!("\x1b[2m$ {}\x1b[0m", words(command));
    let status = command.status().map_err(|source| start_error(command, source))?;
    if status.success() { Ok(()) } else { Err(Error::Failed { command: words(command), status }) }
}

/// Runs to the end and returns what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = command.output().map_err(|source| start_error(command, source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::Failed { command: words(command), status: output.status })
    }
}

/// The same, with the most memory in MiB that the program had.
pub(crate) fn output_and_peak(command: &mut Command) -> Result<(String, f64)> {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let mut child = spawned.map_err(|source| start_error(command, source))?;
    let peak = PeakMemory::watch(&child);
    let mut text = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut text));
    let status = child.wait().map_err(|source| start_error(command, source))?;
    read.map_err(Error::io(command.get_program()))?;
    if status.success() {
        Ok((text, peak.mib()))
    } else {
        Err(Error::Failed { command: words(command), status })
    }
}

/// Looks at a program's memory while it runs: the kernel keeps the peak, and forgets it with the program.
pub(crate) struct PeakMemory(JoinHandle<f64>);

impl PeakMemory {
    pub(crate) fn watch(child: &Child) -> Self {
        let status = PathBuf::from(format!("/proc/{}/status", child.id()));
        Self(std::thread::spawn(move || {
            let mut peak = f64::NAN;
            while let Some(mib) = peak_mib(&status) {
                peak = mib;
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        }))
    }

    /// The peak; NaN where the system does not count. Called after the program has ended.
    pub(crate) fn mib(self) -> f64 {
        self.0.join().unwrap_or(f64::NAN)
    }
}

/// `None` once the program has ended.
fn peak_mib(status: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

fn start_error(command: &Command, source: std::io::Error) -> Error {
    Error::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

fn words(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
