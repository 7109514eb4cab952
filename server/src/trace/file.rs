//! The file of a trace: an object a line, written as the operations run.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use quire_kernels::trace::{TraceRecord, TraceSink};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{FILE_NAME, TraceHeader, TraceLine};
use crate::error::{Error, Result};

/// Where records are written. Nothing is buffered: what was computed last before a crash is what one wants to see.
pub(super) struct TraceFile {
    path: PathBuf,
    has_replaced: bool,
    /// `None` once a write has failed: a trace with a hole would mislead.
    file: Mutex<Option<File>>,
}

impl TraceFile {
    /// Makes the folder, and in it a new file, in place of one that is there.
    pub(super) fn create(folder: &Path, header: &TraceHeader) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let has_replaced = path.exists();
        let create = || -> io::Result<File> {
            fs::create_dir_all(folder)?;
            let mut file = File::create(&path)?;
            write_line(&mut file, header)?;
            Ok(file)
        };
        match create() {
            Ok(file) => Ok(Self { path, has_replaced, file: Mutex::new(Some(file)) }),
            Err(source) => Err(Error::Write { path, source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there was a file before.
    pub(super) fn has_replaced(&self) -> bool {
        self.has_replaced
    }
}

impl TraceSink for TraceFile {
    fn record(&self, record: &TraceRecord) {
        // A thread that panicked here left whole lines behind.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = file.as_mut() else { return };
        if let Err(error) = write_line(open, &TraceLine::from(record)) {
            tracing::error!(target: "quire::server", "the trace {} ends here: {error}", self.path.display());
            *file = None;
        }
    }
}

/// In one call, so that a line is written whole or not at all.
fn write_line(file: &mut File, line: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)
}

/// The lines of a trace.
pub(crate) struct TraceReader {
    path: PathBuf,
    lines: io::Lines<BufReader<File>>,
    num_read: usize,
    header: TraceHeader,
}

impl TraceReader {
    /// Opens a trace: the file, or the folder that holds it.
    ///
    /// # Errors
    ///
    /// [`Error::Read`], [`Error::Trace`] where it begins with something else than the header of a trace.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let path = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
        let file = File::open(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let mut lines = BufReader::new(file).lines();
        let header = match lines.next() {
            Some(line) => parse(&path, 1, line)?,
            None => return Err(wrong_line(&path, 1, "the file is empty")),
        };
        let reader = Self { path, lines, num_read: 1, header };
        match reader.header.is_known() {
            true => Ok(reader),
            false => Err(wrong_line(&reader.path, 1, "a version of the format that is not known here")),
        }
    }

    pub(crate) fn header(&self) -> &TraceHeader {
        &self.header
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceLine>;

    fn next(&mut self) -> Option<Result<TraceLine>> {
        let line = self.lines.next()?;
        self.num_read += 1;
        Some(parse(&self.path, self.num_read, line))
    }
}

fn parse<T: DeserializeOwned>(path: &Path, number: usize, line: io::Result<String>) -> Result<T> {
    let line = line.map_err(|source| Error::Read { path: path.to_owned(), source })?;
    serde_json::from_str(&line).map_err(|error| wrong_line(path, number, error.to_string()))
}

fn wrong_line(path: &Path, line: usize, reason: impl Into<String>) -> Error {
    Error::Trace { path: path.to_owned(), line, reason: reason.into() }
}
