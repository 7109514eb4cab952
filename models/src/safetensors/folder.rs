//! The weights of a Hugging Face folder: one file, or shards behind an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::{Entry, Header};
use crate::error::{Error, Result};
use crate::json;
use crate::mmap::{MappedFile, TensorBytes};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

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
/// reference implementation, and the index is reported as ignored: the usual cause is a repository
/// whose shards were merged and whose index was left behind.
#[derive(Debug)]
pub struct SafetensorsFolder {
    files: Vec<Arc<MappedFile>>,
    /// By name: the file it lies in, and where.
    tensors: BTreeMap<String, (usize, Entry)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl SafetensorsFolder {
    /// Maps every file of `folder` and checks headers against lengths and shards against the index.
    ///
    /// # Errors
    /// [`Error::NoWeights`], [`Error::Safetensors`] or [`Error::Shards`], naming file and tensor.
    pub fn open(folder: &Path) -> Result<Self> {
        let (single, index) = (folder.join(SINGLE_FILE), folder.join(INDEX_FILE));
        if single.exists() {
            if index.exists() {
                tracing::warn!(
                    target: "quire::models",
                    index = %index.display(),
                    "ignored: model.safetensors lies beside it and is used"
                );
            }
            return Self::open_files(&[single]);
        }
        if index.exists() {
            return Self::open_index(folder, &index);
        }
        Err(Error::NoWeights { path: folder.to_owned(), expected: [SINGLE_FILE, INDEX_FILE] })
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
        TensorBytes::mapped(&self.files[*file], entry.range())
    }

    /// The file a tensor lies in.
    pub fn file(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).map(|(file, _)| self.files[*file].path())
    }

    fn open_index(folder: &Path, index_path: &Path) -> Result<Self> {
        let index: Index = json::read(index_path)?;
        let refuse = |source| Error::Shards { path: index_path.to_owned(), source };
        let shards: BTreeSet<&String> = index.weight_map.values().collect();
        if shards.is_empty() {
            return Err(refuse(ShardError::Empty));
        }
        let paths = shards
            .iter()
            .map(|shard| shard_path(folder, shard, &index))
            .collect::<Result<Vec<_>, _>>()
            .map_err(refuse)?;
        let opened = Self::open_files(&paths)?;
        opened.check_against(&index).map_err(refuse)?;
        Ok(opened)
    }

    fn open_files(paths: &[PathBuf]) -> Result<Self> {
        let mut opened = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for (at, path) in paths.iter().enumerate() {
            let file = MappedFile::open(path)?;
            let header = Header::parse(&file)
                .map_err(|source| Error::Safetensors { path: path.clone(), source: Box::new(source) })?;
            for (name, entry) in header.entries() {
                if let Some((first, _)) = opened.tensors.insert(name.clone(), (at, entry.clone())) {
                    let first = paths[first].clone();
                    return Err(Error::TensorTwice { tensor: name.clone(), first, second: path.clone() });
                }
            }
            opened.files.push(file);
        }
        Ok(opened)
    }

    /// The index must name nothing that is not there; what it does not name is used all the same.
    fn check_against(&self, index: &Index) -> Result<(), ShardError> {
        for (tensor, shard) in &index.weight_map {
            let found = self.file(tensor).and_then(Path::file_name);
            if found != Some(shard.as_ref()) {
                return Err(ShardError::AbsentTensor { tensor: tensor.clone(), shard: shard.clone() });
            }
        }
        Ok(())
    }
}

fn shard_path(folder: &Path, shard: &str, index: &Index) -> Result<PathBuf, ShardError> {
    let mut parts = Path::new(shard).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Err(ShardError::ShardName { shard: shard.to_owned() });
    }
    let path = folder.join(shard);
    if path.exists() {
        return Ok(path);
    }
    let mut inside = index.weight_map.iter().filter(|(_, file)| *file == shard).map(|(tensor, _)| tensor);
    let tensor = inside.next().cloned().unwrap_or_default();
    Err(ShardError::MissingShard { shard: shard.to_owned(), tensor, num_tensors: 1 + inside.count() })
}
