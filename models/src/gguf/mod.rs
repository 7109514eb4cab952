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
mod split;
mod tensor_type;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file;
use crate::mmap::{MappedFile, TensorBytes};

use self::split::{PartName, Split};

pub use error::GgufError;
pub use header::{Header, TensorEntry};
pub use metadata::{Array, Metadata, Value, ValueType};
pub use split::files_of;
pub(crate) use tensor_type::type_id;

/// A model as GGUF: the parsed headers of one file or several over their mapped bytes.
///
/// A large model may lie in files `NAME-00001-of-00003.gguf` and so on, of which the first has the metadata; each has a
/// header of its own, and tensors.
#[derive(Debug)]
pub struct Gguf {
    /// At least one; the first has the metadata.
    parts: Vec<Part>,
    /// Whether a file of several cannot be read.
    is_incomplete: bool,
}

/// One file.
#[derive(Debug)]
struct Part {
    file: Arc<MappedFile>,
    header: Header,
}

impl Gguf {
    /// Maps `path`, and the files beside it where the model is in several, and checks their whole headers against their
    /// lengths. Any one of several files will do for `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Gguf`] naming field or tensor if it is not sound.
    pub fn open(path: &Path) -> Result<Self> {
        let mut problems = Vec::new();
        let opened = Self::survey(path, &mut problems)?;
        problems.into_iter().next().map_or(Ok(opened), Err)
    }

    /// The same, with every tensor that is not sound and every file that is missing in `problems`; the rest is there.
    ///
    /// # Errors
    /// What makes it impossible to go on.
    pub fn survey(path: &Path, problems: &mut Vec<Error>) -> Result<Self> {
        let before = problems.len();
        let given = Part::survey(path, problems)?;
        let Some(split) = given.split()? else {
            return Ok(Self { parts: vec![given], is_incomplete: false });
        };
        let Some(name) = PartName::of(path) else {
            return Err(given.error(GgufError::PartName { count: split.count }));
        };
        split.check(&name).map_err(|source| given.error(source))?;
        if name.number != 1 {
            // What is wrong with the tensors of this file is told when its turn comes.
            problems.truncate(before);
            return match name.sibling(1) {
                first if file::is_there(&first)? => Self::survey(&first, problems),
                first => Err(given.error(GgufError::MissingPart { file: file_name(&first) })),
            };
        }
        let mut opened = Self { parts: vec![given], is_incomplete: false };
        (2..=name.count).for_each(|number| opened.add(&name.sibling(number), problems));
        if problems.len() == before {
            opened.find_twins(problems);
            let checked = split.check_tensors(opened.tensors().count());
            problems.extend(checked.err().map(|source| opened.error(source)));
        }
        Ok(opened)
    }

    /// Takes in another file.
    fn add(&mut self, path: &Path, problems: &mut Vec<Error>) {
        if !file::is_there(path).unwrap_or(true) {
            self.is_incomplete = true;
            return problems.push(self.error(GgufError::MissingPart { file: file_name(path) }));
        }
        match Part::survey(path, problems).and_then(|part| part.checked()) {
            Ok(part) => self.parts.push(part),
            Err(error) => {
                self.is_incomplete = true;
                problems.push(error);
            }
        }
    }

    /// Tensors that are in two files.
    fn find_twins(&self, problems: &mut Vec<Error>) {
        let mut first_of: BTreeMap<&str, &Path> = BTreeMap::new();
        for part in &self.parts {
            for tensor in part.header.tensors() {
                if let Some(first) = first_of.insert(tensor.name(), part.file.path()) {
                    let (first, second) = (first.to_owned(), part.file.path().to_owned());
                    problems.push(Error::TensorTwice { tensor: tensor.name().to_owned(), first, second });
                }
            }
        }
    }

    /// Whether a tensor is not here because it, or a file, is not sound.
    pub fn is_lost(&self, name: &str) -> bool {
        let is_absent = || self.is_incomplete && self.tensor(name).is_none();
        self.parts.iter().any(|part| part.header.is_lost(name)) || is_absent()
    }

    /// Gives the memory back that what was read of the files takes in this process.
    pub fn release_pages(&self) {
        self.parts.iter().for_each(|part| part.file.release_all());
    }

    /// Where the file lies; of several files the first, which has the metadata.
    pub fn path(&self) -> &Path {
        self.parts[0].file.path()
    }

    /// The files, with their lengths in bytes.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let file = |part: &Part| (part.file.path().to_owned(), part.file.len() as u64);
        self.parts.iter().map(file).collect()
    }

    /// The files with bytes behind their last tensor that belong to none, and how many.
    pub fn trailing(&self) -> impl Iterator<Item = (&Path, u64)> {
        let bytes = self.parts.iter().map(|part| (part.file.path(), part.header.num_trailing()));
        bytes.filter(|(_, num_bytes)| *num_bytes > 0)
    }

    /// The bytes of each file that stand in front of its tensors.
    pub fn headers(&self) -> Vec<TensorBytes> {
        let header = |part: &Part| TensorBytes::mapped(&part.file, 0..part.header.num_bytes());
        self.parts.iter().filter_map(header).collect()
    }

    /// The metadata, readable in place.
    pub fn metadata(&self) -> Metadata<'_> {
        self.parts[0].metadata()
    }

    /// Every tensor, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.parts.iter().flat_map(|part| part.header.tensors())
    }

    /// The tensor of this (GGUF) name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.parts.iter().find_map(|part| part.header.tensor(name))
    }

    /// The bytes of one of the tensors.
    pub fn bytes(&self, tensor: &TensorEntry) -> Option<TensorBytes> {
        TensorBytes::mapped(&self.part_of(tensor)?.file, tensor.range())
    }

    /// The file that one of the tensors lies in.
    pub fn path_of(&self, tensor: &TensorEntry) -> &Path {
        self.part_of(tensor).map_or(self.path(), |part| part.file.path())
    }

    fn part_of(&self, tensor: &TensorEntry) -> Option<&Part> {
        self.parts.iter().find(|part| part.header.tensor(tensor.name()).is_some())
    }

    /// Attaches the path to an error of the metadata.
    pub(crate) fn error(&self, source: GgufError) -> Error {
        self.parts[0].error(source)
    }
}

impl Part {
    fn survey(path: &Path, problems: &mut Vec<Error>) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let refuse = |source| Error::Gguf { path: path.to_owned(), source: Box::new(source) };
        let mut errors = Vec::new();
        let header = Header::survey(&file, &mut errors).map_err(refuse)?;
        problems.extend(errors.into_iter().map(refuse));
        Ok(Self { file, header })
    }

    /// It, if it is the part that its name says.
    fn checked(self) -> Result<Self> {
        let missing = || self.error(GgufError::MissingKey { field: "split.count".to_owned() });
        let split = self.split()?.ok_or_else(missing)?;
        let name = PartName::of(self.file.path()).expect("the name is one of several files");
        split.check(&name).map_err(|source| self.error(source))?;
        Ok(self)
    }

    fn split(&self) -> Result<Option<Split>> {
        Split::of(self.metadata()).map_err(|source| self.error(source))
    }

    fn metadata(&self) -> Metadata<'_> {
        self.header.metadata(&self.file)
    }

    fn error(&self, source: GgufError) -> Error {
        Error::Gguf { path: self.file.path().to_owned(), source: Box::new(source) }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
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
