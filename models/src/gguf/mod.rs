//! GGUF, version 2 and 3, little-endian: one file that holds metadata, tokenizer and tensors.
//!
//! ```text
//! magic version tensor_count metadata_count | key type value ... | name dims type offset ... | pad | tensor bytes
//! ```
//!
//! The layout is the one of the public specification (`ggml/docs/gguf.md`). Parsing works on a plain
//! `&[u8]`, trusts no count and no offset in it, and copies keys and tensor names only: strings and
//! arrays stay where they are until asked for, because a tokenizer's vocabulary is most of a header.

mod cursor;
mod error;
mod header;
mod metadata;
mod tensor_type;

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mmap::{MappedFile, TensorBytes};

pub use error::GgufError;
pub use header::{Header, TensorEntry};
pub use metadata::{Array, Metadata, Value, ValueType};
pub(crate) use tensor_type::type_id;

/// An opened GGUF file: its parsed header over its mapped bytes.
#[derive(Debug)]
pub struct Gguf {
    file: Arc<MappedFile>,
    header: Header,
}

impl Gguf {
    /// Maps `path` and checks its whole header against the file's length.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Gguf`] naming field or tensor if it is not sound.
    pub fn open(path: &Path) -> Result<Self> {
        let mut problems = Vec::new();
        let opened = Self::survey(path, &mut problems)?;
        problems.into_iter().next().map_or(Ok(opened), Err)
    }

    /// The same, with every tensor that is not sound in `problems`; the file has the others.
    ///
    /// # Errors
    /// What makes it impossible to go on.
    pub fn survey(path: &Path, problems: &mut Vec<Error>) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let refuse = |source| Error::Gguf { path: path.to_owned(), source: Box::new(source) };
        let mut errors = Vec::new();
        let header = Header::survey(&file, &mut errors).map_err(refuse)?;
        problems.extend(errors.into_iter().map(refuse));
        Ok(Self { file, header })
    }

    /// Whether a tensor is not here because it is not sound.
    pub fn is_lost(&self, name: &str) -> bool {
        self.header.is_lost(name)
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file's length.
    pub fn num_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    /// The metadata, readable in place.
    pub fn metadata(&self) -> Metadata<'_> {
        self.header.metadata(&self.file)
    }

    /// Every tensor, in the order of the file.
    pub fn tensors(&self) -> &[TensorEntry] {
        self.header.tensors()
    }

    /// The tensor of this (GGUF) name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.header.tensor(name)
    }

    /// The bytes of one of this file's tensors.
    pub fn bytes(&self, tensor: &TensorEntry) -> Option<TensorBytes> {
        TensorBytes::mapped(&self.file, tensor.range())
    }

    /// Attaches this file's path to an error found in it.
    pub(crate) fn error(&self, source: GgufError) -> Error {
        Error::Gguf { path: self.path().to_owned(), source: Box::new(source) }
    }
}

/// Whether `data` starts like a GGUF file; says nothing about the rest.
pub fn has_magic(data: &[u8]) -> bool {
    data.starts_with(header::MAGIC)
}

/// The body of a fuzz target: reads `data` as a GGUF file and everything that can be asked of one.
/// It must return, whatever the bytes are.
pub fn fuzz(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    let metadata = header.metadata(data);
    for key in metadata.keys() {
        let _ = metadata.string(key);
        let _ = metadata.unsigned(key);
        let _ = metadata.float(key);
        let _ = metadata.boolean(key);
        if let Ok(Some(strings)) = metadata.strings(key) {
            strings.take_while(|s| s.is_ok()).for_each(drop);
        }
        if let Ok(Some(floats)) = metadata.floats(key) {
            floats.for_each(drop);
        }
        if let Ok(Some(integers)) = metadata.integers(key) {
            integers.for_each(drop);
        }
    }
    for tensor in header.tensors() {
        assert!(data.get(tensor.range()).is_some(), "a parsed tensor lies inside the file");
        assert!(header.tensor(tensor.name()).is_some(), "a parsed tensor is found by its name");
    }
}
