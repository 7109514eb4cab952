//! Reading small files of a model: of the right kind, and not without end.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use crate::error::{Error, Result};

/// More than any configuration, index or tokenizer has: the largest tokenizers take some 40 MB.
const MAX_BYTES: u64 = 256 << 20;

/// Whether there is something of this name. A link to nothing, and what nobody may look for, is there: whoever reads it
/// gets to know, where `Path::exists` would have it pass for a file that was left out.
///
/// # Errors
/// [`Error::Io`] where that cannot be known.
pub(crate) fn is_there(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

/// Opens a file. What is none, such as a pipe, which nobody may ever write to, is refused instead of waited for.
///
/// # Errors
/// [`Error::Io`], [`Error::NotAFile`].
pub(crate) fn open(path: &Path) -> Result<File> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: path.to_owned(), kind: kind(&metadata) });
    }
    File::open(path).map_err(io)
}

/// Reads a file that is no weights.
///
/// # Errors
/// As [`open`]; [`Error::TooLarge`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        let given = std::fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
        return Err(Error::TooLarge { path: path.to_owned(), given, max: MAX_BYTES });
    }
    Ok(bytes)
}

fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() { "a folder" } else { "a pipe, a socket or a device" }
}
