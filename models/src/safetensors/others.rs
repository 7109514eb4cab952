//! Files of weights in a folder that are none of those that are read.

use std::path::{Path, PathBuf};

use super::folder::{INDEX_FILE, SINGLE_FILE};
use crate::error::Error;

/// Files of another form, by how their names begin and end.
struct Other {
    start: &'static str,
    end: &'static str,
    /// What it is, and what there is to do about it.
    what: &'static str,
}

const OTHERS: [Other; 8] = [
    other("adapter_model", "", "is an adapter: merge it into the model that it was made for, and save that"),
    other(
        "consolidated",
        ".safetensors",
        "names tensors as its makers do: the repository for transformers has them as model.safetensors",
    ),
    other(
        "model-",
        ".safetensors",
        "is one of several shards, whose model.safetensors.index.json is missing",
    ),
    other("", ".safetensors", "has another name than model.safetensors: rename it, if it is the whole model"),
    other(
        "",
        ".msgpack",
        "is in the form of Flax: from_pretrained(folder, from_flax=True) reads it in transformers",
    ),
    other(
        "",
        ".h5",
        "is in the form of TensorFlow: from_pretrained(folder, from_tf=True) reads it in transformers",
    ),
    other("", ".onnx", "is in the form of ONNX, which is not read"),
    other("", ".npz", "is in the form of NumPy, which is not read"),
];

const fn other(start: &'static str, end: &'static str, what: &'static str) -> Other {
    Other { start, end, what }
}

impl Other {
    fn is(&self, name: &str) -> bool {
        name.starts_with(self.start) && name.ends_with(self.end)
    }
}

/// Files of Python objects that are no weights.
const NO_WEIGHTS: [&str; 5] = ["training_args", "optimizer", "scheduler", "rng_state", "scaler"];

/// What there is to say of a folder without weights that can be read.
pub(super) fn no_weights(folder: &Path) -> Error {
    let (names, path) = (names(folder), folder.to_owned());
    let [adapter, ..] = OTHERS;
    if let Some(file) = names.iter().find(|name| is_pickled(name) && !adapter.is(name)) {
        return Error::PickledWeights { path: path.join(file) };
    }
    if let Some(file) = names.iter().find(|name| name.ends_with(".gguf")) {
        return Error::FolderOfGguf { path, file: file.clone() };
    }
    let found = OTHERS.iter().find_map(|other| Some((other, names.iter().find(|name| other.is(name))?)));
    match found {
        Some((other, file)) => Error::OtherWeights { path, file: file.clone(), what: other.what },
        None => Error::NoWeights { path, expected: [SINGLE_FILE, INDEX_FILE] },
    }
}

/// Files that hold weights by their names, with their lengths in bytes; indices too.
pub(super) fn files_of_weights(folder: &Path) -> Vec<(PathBuf, u64)> {
    let is_weights = |name: &String| {
        let is_other = OTHERS.iter().any(|other| !other.end.is_empty() && name.ends_with(other.end));
        name == INDEX_FILE || name.ends_with(".gguf") || is_pickled(name) || is_other
    };
    let with_len = |name: String| {
        let path = folder.join(name);
        let len = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        (path, len)
    };
    names(folder).into_iter().filter(is_weights).map(with_len).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn is_pickled(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str());
    let is_python = end.is_some_and(|end| ["bin", "pt", "pth", "ckpt"].contains(&end));
    is_python && !NO_WEIGHTS.iter().any(|start| name.starts_with(start))
}
