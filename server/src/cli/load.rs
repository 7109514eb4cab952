//! Files of the commands that simulate: traces, cost models, recordings.

use std::fs;
use std::path::{Path, PathBuf};

use quire_engine::ConfigError;
use quire_scheduler::cost::CostModel;
use quire_scheduler::record::Recording;
use quire_scheduler::trace::{Trace, TraceError};
use quire_scheduler::{PolicyRegistry, SchedulerPolicy, Time};

use crate::error::{Error, Result};

pub(super) fn read_trace(path: &Path) -> Result<Trace> {
    let named = |source| Error::LoadTrace { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Trace::parse_bytes(&bytes).map_err(named)
}

/// When the requests come: by a rate, with gaps drawn from `seed` where the trace has no times of its own.
pub(super) fn arrival_times(trace: &Trace, rate: Option<f64>, seed: u64) -> Result<Vec<Time>, TraceError> {
    match rate {
        Some(_) if !trace.has_times() => trace.with_gaps(seed).arrival_times(rate),
        _ => trace.arrival_times(rate),
    }
}

/// The model of the file, or the built-in one.
pub(super) fn read_cost_model(path: Option<&Path>) -> Result<CostModel> {
    let Some(path) = path else { return Ok(CostModel::default()) };
    let named = |source| Error::CostModel { path: path.to_owned(), source };
    CostModel::parse(&read_text(path)?).map_err(named)
}

pub(super) fn read_recording(path: &Path) -> Result<Recording> {
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Recording::from_bytes(&bytes).map_err(|source| in_recording(path, source))
}

/// An error of the recording at `path`.
pub(super) fn in_recording(path: &Path, source: quire_scheduler::record::RecordingError) -> Error {
    Error::Recording { path: path.to_owned(), source }
}

pub(super) fn policy(policies: &PolicyRegistry, name: &str) -> Result<Box<dyn SchedulerPolicy>> {
    Ok(policies.build(name).map_err(ConfigError::from).map_err(quire_engine::Error::from)?)
}

pub(super) fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).map_err(|source| Error::Write { path: PathBuf::from(path), source })
}

/// Before a long run: fails where its result could not be written, or would take the place of what it reads.
pub(super) fn check_output<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    check_apart(path, inputs)?;
    check_writable(path)
}

/// Fails where a file that is written is one that is read. A folder that is read stands for all files in it.
pub(super) fn check_apart<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    match inputs.into_iter().any(|input| is_part_of(path, input)) {
        true => Err(Error::OutputIsInput { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// Whether two paths lead to one file, by whatever names and links, or the second to a folder that holds the first.
fn is_part_of(path: &Path, input: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let (Some(file), Some(read)) = (id(path), id(input)) else { return false };
    let is_in =
        || path.canonicalize().ok().zip(input.canonicalize().ok()).is_some_and(|(p, i)| p.starts_with(i));
    file == read || (input.is_dir() && is_in())
}

/// A file that is there keeps its content.
fn check_writable(path: &Path) -> Result<()> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    let checked = opened.and_then(|_| if is_new { fs::remove_file(path) } else { Ok(()) });
    checked.map_err(|source| Error::Write { path: PathBuf::from(path), source })
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// A number above 0.
pub(super) fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or("expected a number above 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_an_input_is_refused_by_whatever_name() {
        let folder = tempfile::tempdir().expect("a folder for tests");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("in.csv"), "text").expect("writable");
        fs::create_dir(path("model")).expect("writable");
        fs::write(path("model/config.json"), "{}").expect("writable");
        std::os::unix::fs::symlink(path("in.csv"), path("link")).expect("writable");
        fs::hard_link(path("in.csv"), path("hard")).expect("writable");
        let (trace, model, none) = (path("in.csv"), path("model"), path("none"));
        let check = |name: &str| check_output(&path(name), [&*trace, &*model, &*none]);
        for name in ["in.csv", "model/../in.csv", "link", "hard", "model/config.json"] {
            assert!(matches!(check(name), Err(Error::OutputIsInput { .. })), "{name}");
        }
        for name in ["none", "model/new", "other"] {
            check(name).expect("nothing is lost");
        }
        assert_eq!(fs::read_to_string(trace).expect("it is there"), "text");
    }
}
