//! One line of a report.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::gguf::GgufError;
use crate::safetensors::{SafetensorsError, ShardError};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The model is refused for it.
    Problem,
    /// Worth knowing; the model runs.
    Note,
}

/// Something that a check has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A word for the kind, such as `missing-tensor`: an interface, programs read it.
    pub kind: &'static str,
    /// The file or folder.
    pub file: PathBuf,
    /// The tensor, under the name that the file has for it.
    pub tensor: Option<String>,
    /// Bytes that are concerned: missing ones, those of a tensor.
    pub num_bytes: Option<u64>,
    /// What is wrong, in words.
    pub message: String,
}

impl Finding {
    /// What an error says.
    pub fn of_error(error: &Error) -> Self {
        let (kind, file, tensor, num_bytes) = describe(error);
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Self { severity: Severity::Problem, kind, file, tensor, num_bytes, message }
    }

    /// Adds the file and the bytes of the tensor, where an error could not know them.
    pub(super) fn complete(&mut self, checkpoint: &Checkpoint) {
        let Some((path, Some(num_bytes))) = self.tensor.as_deref().map(|name| checkpoint.place_of(name))
        else {
            return;
        };
        self.num_bytes.get_or_insert(num_bytes);
        if self.file == checkpoint.path() {
            self.file = path;
        }
    }

    /// Something that is no problem.
    pub fn note(
        kind: &'static str,
        file: &Path,
        tensor: Option<String>,
        num_bytes: Option<u64>,
        message: String,
    ) -> Self {
        Self { severity: Severity::Note, kind, file: file.to_owned(), tensor, num_bytes, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            Some(tensor) if !self.message.contains(tensor.as_str()) => {
                write!(f, "{tensor}: {}", self.message)
            }
            _ => f.write_str(&self.message),
        }
    }
}

/// Kind, file, tensor and bytes of an error.
fn describe(error: &Error) -> (&'static str, PathBuf, Option<String>, Option<u64>) {
    let of = |kind, path: &Path| (kind, path.to_owned(), None, None);
    let with = |kind, path: &Path, tensor: &str| (kind, path.to_owned(), Some(tensor.to_owned()), None);
    match error {
        Error::Io { path, .. } => of("unreadable-file", path),
        Error::NotAFile { path, .. } | Error::TooLarge { path, .. } => of("unreadable-file", path),
        Error::Json { path, .. } | Error::JsonForm { path, .. } | Error::ByteOrderMark { path, .. } => {
            of("invalid-json", path)
        }
        Error::NotAModel { path } | Error::DummyFile { path } => of("not-a-model", path),
        Error::NoWeights { path, .. } | Error::FolderOfGguf { path, .. } => of("no-weights", path),
        Error::OtherWeights { path, file, .. } => of("no-weights", &path.join(file)),
        Error::LfsPointer { path } => of("broken-file", path),
        Error::PickledWeights { path } => of("pickled-weights", path),
        Error::Gguf { path, source } if matches!(**source, GgufError::MissingPart { .. }) => {
            of("missing-shard", path)
        }
        Error::Gguf { path, source } => {
            let (tensor, num_bytes) = gguf_place(source);
            ("broken-file", path.clone(), tensor, num_bytes)
        }
        Error::Safetensors { path, source } => {
            let (tensor, num_bytes) = safetensors_place(source);
            ("broken-file", path.clone(), tensor, num_bytes)
        }
        Error::Shards { path, source } => match source {
            ShardError::MissingShard { tensor, .. } => with("missing-shard", path, tensor),
            ShardError::AbsentTensor { tensor, .. } => with("stale-index", path, tensor),
            _ => of("broken-index", path),
        },
        Error::TensorTwice { tensor, second, .. } => with("tensor-twice", second, tensor),
        Error::WeightTwice { tensor, path, .. } => with("tensor-twice", path, tensor),
        Error::Config { path, .. } => of("configuration", path),
        Error::MissingTensor { tensor, path } => with("missing-tensor", path, tensor),
        Error::TensorShape { tensor, path, .. } => with("tensor-shape", path, tensor),
        Error::TensorDType { tensor, path, .. } => with("tensor-dtype", path, tensor),
        Error::ColumnGroup { tensor, path, .. } => with("column-group", path, tensor),
        Error::NotFinite { tensor, path, num_bytes, .. } => {
            ("not-finite", path.clone(), Some(tensor.clone()), Some(*num_bytes))
        }
        Error::Tokenizer { path, .. } => of("tokenizer", path),
        Error::TokenizerSize { path, .. } => of("tokenizer-size", path),
        Error::SpecialToken { path, .. } => of("special-token", path),
        Error::UnknownArchitecture { .. } => of("architecture", Path::new("")),
        Error::Unsupported { .. } => of("unsupported", Path::new("")),
        Error::Problems { path, .. } => of("problems", path),
        Error::Kernels(_) => of("backend", Path::new("")),
    }
}

fn gguf_place(error: &GgufError) -> (Option<String>, Option<u64>) {
    match error {
        GgufError::OutOfBounds { tensor, missing, .. } => (Some(tensor.clone()), Some(*missing)),
        GgufError::Truncated { needed, left, .. } => (None, Some(needed.saturating_sub(*left))),
        GgufError::Dimensions { tensor, .. }
        | GgufError::Shape { tensor, .. }
        | GgufError::UnsupportedType { tensor, .. }
        | GgufError::Misaligned { tensor, .. } => (Some(tensor.clone()), None),
        GgufError::Overlap { second, .. } => (Some(second.clone()), None),
        _ => (None, None),
    }
}

fn safetensors_place(error: &SafetensorsError) -> (Option<String>, Option<u64>) {
    match error {
        SafetensorsError::OutOfBounds { tensor, missing, .. } => (Some(tensor.clone()), Some(*missing)),
        SafetensorsError::Offsets { tensor, .. } => (Some(tensor.clone()), None),
        SafetensorsError::Size { tensor, given, .. } => (Some(tensor.clone()), Some(*given)),
        SafetensorsError::Overlap { second, .. } => (Some(second.clone()), None),
        SafetensorsError::HeaderLength { given, .. } => (None, Some(*given)),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Whoever may read everything, as root does, meets no such file: this is what others get to see.
    #[test]
    fn a_file_that_may_not_be_read_is_named_with_the_reason() {
        let (path, source) = (PathBuf::from("m/config.json"), io::ErrorKind::PermissionDenied.into());
        let finding = Finding::of_error(&Error::Io { path, source });
        assert_eq!((finding.kind, finding.file.as_path()), ("unreadable-file", Path::new("m/config.json")));
        assert_eq!(finding.message, "cannot read m/config.json: permission denied");
    }
}
