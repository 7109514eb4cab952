//! The weights of a Hugging Face folder: one file, or shards behind an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::{Entry, Header, SafetensorsError, StoredDType, others};
use crate::checkpoint::StoredPart;
use crate::error::{Error, Result};
use crate::mmap::{MappedFile, TensorBytes};
use crate::{file, json};

pub(super) const SINGLE_FILE: &str = "model.safetensors";
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Why a folder's shards do not fit its index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// A shard that the index names is not there.
    #[error("shard {shard} is missing, {num_tensors} tensors such as {tensor} should be in it")]
    MissingShard {
        /// The shard's file name.
        shard: String,
        /// One of its tensors.
        tensor: String,
        /// How many it should hold.
        num_tensors: usize,
    },
    /// The index names a tensor that its shard does not hold.
    #[error("tensor {tensor} is named for {shard}, which does not hold it")]
    AbsentTensor {
        /// The tensor.
        tensor: String,
        /// The shard it should be in.
        shard: String,
    },
    /// A shard name that is no plain file name.
    #[error("shard name {shard:?} is not a file name inside the folder")]
    ShardName {
        /// The name found.
        shard: String,
    },
    /// An index without any tensor.
    #[error("weight_map names no tensor")]
    Empty,
}

/// The safetensors files of a folder as one set of tensors.
///
/// Where a `model.safetensors` and an index lie side by side, the single file is used, as by the
/// reference implementation, and the index is among the [unused files](Self::unused_files): the usual cause is a
/// repository whose shards were merged and whose index was left behind.
#[derive(Debug)]
pub struct SafetensorsFolder {
    path: PathBuf,
    /// With the lengths of their headers.
    files: Vec<(Arc<MappedFile>, usize)>,
    /// By name: the file it lies in, and where.
    tensors: BTreeMap<String, (usize, Entry)>,
    /// Tensors that a header or the index has, and that cannot be read.
    lost: BTreeSet<String>,
    /// What the index, if there is one in use, says of the bytes of all tensors.
    index_bytes: Option<Option<u64>>,
}

/// What the index says: the shard of each tensor.
struct Index {
    weight_map: BTreeMap<String, String>,
    /// Bytes of all tensors.
    total_bytes: Option<u64>,
}

impl Index {
    fn read(path: &Path) -> Result<Self> {
        let refuse = |expected, given: Option<&Value>| {
            let given = given.map_or_else(|| "nothing".to_owned(), json::described);
            Error::JsonForm { path: path.to_owned(), expected, given }
        };
        let index = json::read(path)?;
        let map = index.get("weight_map");
        let shards = map.and_then(Value::as_object);
        let shards = shards.ok_or_else(|| refuse("weight_map to be an object of file names", map))?;
        let read = |(tensor, shard): (&String, &Value)| match shard.as_str() {
            Some(name) => Ok((tensor.clone(), name.to_owned())),
            None => Err(refuse("a file name for each tensor of weight_map", Some(shard))),
        };
        let total_bytes =
            index.get("metadata").and_then(|metadata| metadata.get("total_size")).and_then(Value::as_u64);
        Ok(Self { weight_map: shards.iter().map(read).collect::<Result<_>>()?, total_bytes })
    }
}

impl SafetensorsFolder {
    /// Maps every file of `folder` and checks headers against lengths and shards against the index.
    ///
    /// # Errors
    /// The first of [`survey`](Self::survey).
    pub fn open(folder: &Path) -> Result<Self> {
        let mut problems = Vec::new();
        let opened = Self::survey(folder, &mut problems);
        problems.into_iter().next().map_or(Ok(opened), Err)
    }

    /// The same, with everything that is wrong and what can be read in spite of it.
    ///
    /// The problems are [`Error::NoWeights`], [`Error::Safetensors`], [`Error::Shards`] and the like, naming file and
    /// tensor.
    pub fn survey(folder: &Path, problems: &mut Vec<Error>) -> Self {
        let (single, index) = (folder.join(SINGLE_FILE), folder.join(INDEX_FILE));
        let (path, files) = (folder.to_owned(), Vec::new());
        let mut opened =
            Self { path, files, tensors: BTreeMap::new(), lost: BTreeSet::new(), index_bytes: None };
        match (file::is_there(&single), file::is_there(&index)) {
            (Ok(true), _) => drop(opened.open_file(&single, problems)),
            (Ok(false), Ok(true)) => opened.open_index(&index, problems),
            (Ok(false), Ok(false)) => problems.push(others::no_weights(folder)),
            (Err(error), _) | (_, Err(error)) => problems.push(error),
        }
        opened
    }

    /// Whether a tensor is not here because it, or its file, is not sound.
    pub fn is_lost(&self, name: &str) -> bool {
        self.lost.contains(name)
    }

    /// A tensor as it is stored, if it has a dtype with a name here.
    pub(crate) fn part(&self, name: &str) -> Option<StoredPart> {
        let (StoredDType::Known(dtype), path) = (self.entry(name)?.dtype().clone(), self.file(name)?) else {
            return None;
        };
        Some(StoredPart { name: name.to_owned(), path: path.to_owned(), dtype, bytes: self.bytes(name)? })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, with their lengths in bytes.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.files.iter().map(|(file, _)| (file.path().to_owned(), file.len() as u64)).collect()
    }

    /// Files of weights in the folder that are not read, with their lengths in bytes.
    pub fn unused_files(&self) -> Vec<(PathBuf, u64)> {
        let is_used = |path: &Path| {
            let of_weights = self.files.iter().any(|(file, _)| file.path() == path);
            of_weights || (self.index_bytes.is_some() && path.ends_with(INDEX_FILE))
        };
        others::files_of_weights(&self.path).into_iter().filter(|(path, _)| !is_used(path)).collect()
    }

    /// The bytes of all tensors as the index gives them and as they are, where those differ.
    pub fn wrong_total(&self) -> Option<(PathBuf, u64, u64)> {
        let given = self.index_bytes.flatten()?;
        let found = self.tensors.values().map(|(_, entry)| entry.range().len() as u64).sum();
        (given != found).then(|| (self.path.join(INDEX_FILE), given, found))
    }

    /// The bytes of each file that stand in front of its tensors.
    pub fn headers(&self) -> Vec<TensorBytes> {
        self.files.iter().filter_map(|(file, num_bytes)| TensorBytes::mapped(file, 0..*num_bytes)).collect()
    }

    /// Every tensor's name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// What the header says of a tensor.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name).map(|(_, entry)| entry)
    }

    /// A tensor's bytes.
    pub fn bytes(&self, name: &str) -> Option<TensorBytes> {
        let (file, entry) = self.tensors.get(name)?;
        TensorBytes::mapped(&self.files[*file].0, entry.range())
    }

    /// The file a tensor lies in.
    pub fn file(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).map(|(file, _)| self.files[*file].0.path())
    }

    fn open_index(&mut self, index_path: &Path, problems: &mut Vec<Error>) {
        let index = match Index::read(index_path) {
            Ok(index) => index,
            Err(error) => return problems.push(error),
        };
        self.index_bytes = Some(index.total_bytes);
        let refuse = |source| Error::Shards { path: index_path.to_owned(), source };
        let shards: BTreeSet<&String> = index.weight_map.values().collect();
        if shards.is_empty() {
            problems.push(refuse(ShardError::Empty));
        }
        let mut sound = BTreeSet::new();
        for shard in shards {
            match shard_path(&self.path, shard, &index) {
                Ok(path) if self.open_file(&path, problems) => drop(sound.insert(shard)),
                Ok(_) => {}
                Err(error) => problems.push(refuse(error)),
            }
        }
        for (tensor, shard) in &index.weight_map {
            if self.file(tensor).and_then(Path::file_name) == Some(shard.as_ref()) {
                continue;
            }
            self.lost.insert(tensor.clone());
            // That a broken or missing shard does not hold it has been said.
            if sound.contains(shard) {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                problems.push(refuse(ShardError::AbsentTensor { tensor, shard }));
            }
        }
    }

    /// Takes in the tensors of a file; whether all of it is sound.
    fn open_file(&mut self, path: &Path, problems: &mut Vec<Error>) -> bool {
        let before = problems.len();
        match MappedFile::open(path) {
            Ok(file) => self.take(file, problems),
            Err(error) => problems.push(error),
        }
        problems.len() == before
    }

    fn take(&mut self, file: Arc<MappedFile>, problems: &mut Vec<Error>) {
        let path = file.path();
        let mut errors = Vec::new();
        let header = Header::survey(&file, &mut errors);
        self.lost.extend(errors.iter().filter_map(SafetensorsError::tensor).map(str::to_owned));
        let refuse = |source| Error::Safetensors { path: path.to_owned(), source: Box::new(source) };
        problems.extend(errors.into_iter().map(refuse));
        for (name, entry) in header.entries() {
            if let Some((first, _)) = self.tensors.insert(name.clone(), (self.files.len(), entry.clone())) {
                let first = self.files[first].0.path().to_owned();
                problems.push(Error::TensorTwice { tensor: name.clone(), first, second: path.to_owned() });
            }
        }
        self.files.push((file, header.num_bytes()));
    }
}

fn shard_path(folder: &Path, shard: &str, index: &Index) -> Result<PathBuf, ShardError> {
    let mut parts = Path::new(shard).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Err(ShardError::ShardName { shard: shard.to_owned() });
    }
    let path = folder.join(shard);
    // What cannot be looked for is told when it is opened.
    if file::is_there(&path).unwrap_or(true) {
        return Ok(path);
    }
    let mut inside = index.weight_map.iter().filter(|(_, file)| *file == shard).map(|(tensor, _)| tensor);
    let tensor = inside.next().cloned().unwrap_or_default();
    Err(ShardError::MissingShard { shard: shard.to_owned(), tensor, num_tensors: 1 + inside.count() })
}
