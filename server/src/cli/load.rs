//! Files of the commands that simulate: traces, cost models, recordings, pictures.

use std::fs;
use std::path::{Path, PathBuf};

use quire_engine::ConfigError;
use quire_scheduler::cost::CostModel;
use quire_scheduler::plot::svg;
use quire_scheduler::record::Recording;
use quire_scheduler::simulate::Timeline;
use quire_scheduler::trace::Trace;
use quire_scheduler::{PolicyRegistry, SchedulerPolicy};

use crate::error::{Error, Result};

pub(super) fn read_trace(path: &Path) -> Result<Trace> {
    let named = |source| Error::LoadTrace { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Trace::parse_bytes(&bytes).map_err(named)
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

/// Before a long run: fails where its result could not be written. A file that is there keeps its content.
pub(super) fn check_writable(path: &Path) -> Result<()> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    let checked = opened.and_then(|_| if is_new { fs::remove_file(path) } else { Ok(()) });
    checked.map_err(|source| Error::Write { path: PathBuf::from(path), source })
}

/// The file of a picture. Pictures are SVG, and nothing else is called so.
pub(super) fn picture(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    if is_svg { Ok(path) } else { Err("expected a file that ends in .svg: pictures are drawn as SVG") }
}

pub(super) fn write_plot(path: &Path, timeline: &Timeline, title: &str) -> Result<()> {
    write_file(path, svg(timeline, title).as_bytes())
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// A number above 0.
pub(super) fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or("expected a number above 0")
}
