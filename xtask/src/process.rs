//! Running programs and showing what is run.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

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
    eprintln!("\x1b[2m$ {}\x1b[0m", words(command));
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

fn start_error(command: &Command, source: std::io::Error) -> Error {
    Error::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

fn words(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
