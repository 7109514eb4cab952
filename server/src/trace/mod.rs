//! Traces of tensors: what `--trace-tensors` writes, and where two of them part.

mod diff;
mod file;
mod line;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quire_kernels::Kernels;
use quire_kernels::trace::traced;

pub(crate) use diff::Diff;
pub(crate) use file::TraceReader;
pub(crate) use line::{TraceHeader, TraceLine};

use crate::error::Result;

/// The name of a trace in its folder.
const FILE_NAME: &str = "tensors.jsonl";

/// The file of a trace in `folder`.
pub(crate) fn path_in(folder: &Path) -> PathBuf {
    folder.join(FILE_NAME)
}

/// `kernels`; where a folder is given, with the outputs of every operation told to the file there.
pub(crate) fn kernels(kernels: Kernels, folder: Option<&Path>) -> Result<Kernels> {
    let Some(folder) = folder else { return Ok(kernels) };
    let file = file::TraceFile::create(folder, &TraceHeader::of(&kernels))?;
    tracing::warn!(
        target: "quire::server",
        "every operation's outputs are read back and written to {}{}: steps are slow, and never captured",
        file.path().display(),
        if file.has_replaced() { ", in place of an older trace, which is gone" } else { "" }
    );
    Ok(traced(&kernels, Arc::new(file)))
}
