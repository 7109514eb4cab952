//! Files mapped into memory, read only: the one place of this crate that needs `unsafe`.

#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// A file of which every byte can be read as one slice. Links are followed: a shard in the hub's
/// cache is a link to a blob, and it is the blob's length that counts.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is private to this struct and only ever read as bytes, for which every bit
        // pattern is valid. That nobody truncates the file while the engine runs is a condition of use
        // that no reader of mapped weights can check; lengths are checked against the map, not the disk.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Arc::new(Self { path: path.to_owned(), map }))
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Bytes of a tensor: a window of a mapped file, or memory of their own after a conversion.
#[derive(Debug, Clone)]
pub enum TensorBytes {
    /// Bytes that lie in the file as they are needed; nothing is read before they are touched.
    Mapped {
        /// The file they lie in.
        file: Arc<MappedFile>,
        /// Where; always inside the file.
        range: Range<usize>,
    },
    /// Bytes that were converted, permuted or made up.
    Owned(Vec<u8>),
}

impl TensorBytes {
    /// A window of `file`, or `None` if it reaches past the end.
    pub fn mapped(file: &Arc<MappedFile>, range: Range<usize>) -> Option<Self> {
        file.get(range.clone())?;
        Some(Self::Mapped { file: Arc::clone(file), range })
    }
}

impl Deref for TensorBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped { file, range } => &file[range.clone()],
            Self::Owned(bytes) => bytes,
        }
    }
}
