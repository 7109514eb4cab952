//! What a path to a model is.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use crate::error::{Error, Result};
use crate::file;
use crate::gguf::has_magic;

/// What a path is, by its name or its first bytes.
pub(super) enum Kind {
    Folder,
    Gguf,
    /// A file of Python objects.
    Pickled,
    Other,
}

impl Kind {
    /// Looks at the path, and into the file.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        if fs::metadata(path).map_err(io)?.is_dir() {
            return Ok(Self::Folder);
        }
        let ends = |ends: &[&str]| path.extension().is_some_and(|end| ends.iter().any(|known| end == *known));
        let mut start = Vec::new();
        file::open(path)?.take(4).read_to_end(&mut start).map_err(io)?;
        Ok(match () {
            () if ends(&["gguf"]) || has_magic(&start) => Self::Gguf,
            () if ends(&["bin", "pt", "pth", "ckpt"]) => Self::Pickled,
            () => Self::Other,
        })
    }
}
