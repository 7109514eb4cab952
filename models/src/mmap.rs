//! Files mapped into memory, read only: the one place of this crate that needs `unsafe`.

#![allow(unsafe_code)]

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
        let file = crate::file::open(path)?;
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

    /// Gives the memory back that pages of the file take in this process: a header that was read, say.
    pub fn release_all(&self) {
        self.release(&(0..self.map.len()));
    }

    /// Gives the memory back that pages of `range` take in this process. They are read anew, from the page
    /// cache mostly, where they are touched again.
    fn release(&self, range: &Range<usize>) {
        #[cfg(unix)]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is a file's and read only, so nothing in it could be lost: a page that is
            // dropped, also under somebody who reads it, comes back with the bytes that the file has.
            let advised = unsafe { self.map.unchecked_advise_range(advice, range.start, range.len()) };
            if let Err(error) = advised {
                // Memory stays in use; nothing is wrong with the bytes.
                tracing::debug!(target: "quire::models", path = %self.path.display(), %error, "madvise");
            }
        }
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
    Mapped(MappedRange),
    /// Bytes that were converted, permuted or made up.
    Owned(Vec<u8>),
}

/// A window of a mapped file. When it is dropped, its pages leave the process's memory: what was read of a
/// checkpoint has been packed for the device by then, and need not be there twice. What a device reads where it lies has
/// the window for as long as that.
#[derive(Debug, Clone)]
pub struct MappedRange {
    file: Arc<MappedFile>,
    /// Inside the file.
    range: Range<usize>,
}

impl TensorBytes {
    /// A window of `file`, or `None` if it reaches past the end.
    pub fn mapped(file: &Arc<MappedFile>, range: Range<usize>) -> Option<Self> {
        file.get(range.clone())?;
        Some(Self::Mapped(MappedRange { file: Arc::clone(file), range }))
    }

    /// Some of the bytes, or `None` if that reaches past the end.
    pub fn window(&self, range: Range<usize>) -> Option<Self> {
        match self {
            Self::Mapped(bytes) => {
                bytes.get(range.clone())?;
                let start = bytes.range.start;
                Self::mapped(&bytes.file, start + range.start..start + range.end)
            }
            Self::Owned(bytes) => Some(Self::Owned(bytes.get(range)?.to_vec())),
        }
    }
}

impl Deref for TensorBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for MappedRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        self.file.release(&self.range);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// KiB of mapped files that this process has in memory, of the mapping at `address`.
    fn resident_kib(address: usize) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("linux has it");
        let start = format!("{address:x}-");
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the mapping is there");
        rss.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn pages_leave_with_the_last_reader_and_come_back_when_asked_for() {
        const LEN: usize = 4 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; LEN]).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>();

        let bytes = TensorBytes::mapped(&mapped, 100..LEN).unwrap();
        assert_eq!(sum(&bytes), 7 * (LEN - 100));
        let address = mapped.as_ptr() as usize;
        assert!(resident_kib(address) >= 4000, "{} KiB", resident_kib(address));
        drop(bytes);
        assert_eq!(resident_kib(address), 0);
        assert_eq!(sum(&mapped), 7 * LEN);
        mapped.release_all();
        assert_eq!(resident_kib(address), 0);
        assert_eq!(mapped[LEN - 1], 7);
    }
}
