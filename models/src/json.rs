//! JSON files, with errors that name the file.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Reads the whole of `path`.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| Error::Json { path: path.to_owned(), source })
}

/// Reads `path` if there is such a file.
pub(crate) fn read_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if path.exists() { read(path).map(Some) } else { Ok(None) }
}
