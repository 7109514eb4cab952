//! Recordings of the scheduler, as files.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quire_scheduler::record::FlightRecorder;

/// Writes what a recorder holds to a new file `quire-PID-N.qrec` in `folder`, and returns its path. The engine goes on
/// meanwhile.
///
/// # Errors
///
/// Those of the file system.
pub fn write_recording(recorder: &FlightRecorder, folder: &Path) -> io::Result<PathBuf> {
    let bytes = recorder.recording().to_bytes();
    let process = std::process::id();
    let mut number = 0;
    loop {
        let path = folder.join(format!("quire-{process}-{number}.qrec"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                file.write_all(&bytes)?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Keeps the recording after an internal error, and says where.
pub(crate) fn save_recording(recorder: &FlightRecorder, folder: &Path) {
    match write_recording(recorder, folder) {
        Ok(path) => {
            let path = path.display();
            tracing::error!(target: "quire::engine", "what the scheduler did is in {path}: `quire trace replay` makes it again");
        }
        Err(error) => {
            let folder = folder.display();
            tracing::error!(target: "quire::engine", "what the scheduler did could not be written to {folder}: {error}");
        }
    }
}
