//! What can go wrong between a path and a loaded model.

use std::path::PathBuf;

use crate::config::ConfigError;
use crate::gguf::GgufError;
use crate::json::JsonError;
use crate::safetensors::{SafetensorsError, ShardError};
use crate::tokenizer::TokenizerError;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model cannot be used. The message says where; the cause, by `source`, says what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be opened, read or mapped.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file is no JSON.
    #[error("{} is not valid json", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: JsonError,
    },
    /// A path that is neither a GGUF file nor a model folder.
    #[error("{} is not a model: expected a gguf file or a folder with config.json", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
    },
    /// Random weights were asked for, of a file that holds its own.
    #[error("{} is a file: load_format dummy makes random weights from the config.json of a folder", path.display())]
    DummyFile {
        /// The path.
        path: PathBuf,
    },
    /// A GGUF file is not sound.
    #[error("{} is not a usable gguf file", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The field or tensor, and why.
        #[source]
        source: Box<GgufError>,
    },
    /// A safetensors file is not sound.
    #[error("{} is not a usable safetensors file", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The tensor, and why.
        #[source]
        source: Box<SafetensorsError>,
    },
    /// Something that is no file where one should be.
    #[error("{} is {kind}, expected a file", path.display())]
    NotAFile {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A file of texts or settings that is larger than any should be.
    #[error("{} has {given} bytes, expected at most {max}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        given: u64,
        /// The most that is read.
        max: u64,
    },
    /// A JSON file of another form than it must have.
    #[error("{}: expected {expected}, given {given}", path.display())]
    JsonForm {
        /// The file.
        path: PathBuf,
        /// What belongs there, and where.
        expected: &'static str,
        /// What is there.
        given: String,
    },
    /// A text file in another encoding.
    #[error("{} begins with a byte order mark of {encoding}, expected UTF-8 without one", path.display())]
    ByteOrderMark {
        /// The file.
        path: PathBuf,
        /// The encoding that the mark is of.
        encoding: &'static str,
    },
    /// Shards do not fit their index.
    #[error("{} does not fit the files beside it", path.display())]
    Shards {
        /// The index.
        path: PathBuf,
        /// The shard or tensor, and why.
        #[source]
        source: ShardError,
    },
    /// A folder without weights that can be read.
    #[error("{} holds no weights: expected {} or {}", path.display(), expected[0], expected[1])]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// The files looked for.
        expected: [&'static str; 2],
    },
    /// Weights as Python objects, which run code when they are read.
    #[error(
        "{} holds weights as python objects, which run code when they are read: convert them with \
         `model.save_pretrained(folder, safe_serialization=True)` of transformers, which writes model.safetensors",
        path.display()
    )]
    PickledWeights {
        /// The file.
        path: PathBuf,
    },
    /// A folder with a GGUF file, which is a model by itself.
    #[error("{} holds no model.safetensors; name the gguf file itself: {}", path.display(), path.join(file).display())]
    FolderOfGguf {
        /// The folder.
        path: PathBuf,
        /// The file.
        file: String,
    },
    /// Two files hold the same tensor.
    #[error("tensor {tensor} is in both {} and {}", first.display(), second.display())]
    TensorTwice {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A weight is there in two forms, and nothing says which one is meant.
    #[error("tensor {tensor} in {} stands for the same weight as {other}, which is there too", path.display())]
    WeightTwice {
        /// One form of it.
        tensor: String,
        /// The other.
        other: String,
        /// The file of the former.
        path: PathBuf,
    },
    /// Weights in a form that is not read.
    #[error("{} holds no model.safetensors; {file} {what}", path.display())]
    OtherWeights {
        /// The folder.
        path: PathBuf,
        /// The file.
        file: String,
        /// What it is, and the way to what can be read.
        what: &'static str,
    },
    /// What git has in place of a large file.
    #[error("{} is a pointer of git lfs, not the file itself: `git lfs pull` fetches it", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A configuration is not sound.
    #[error("{} does not describe a model that can be run", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The field, and why.
        #[source]
        source: ConfigError,
    },
    /// A tensor that the model needs is not there.
    #[error("tensor {tensor} is missing in {}", path.display())]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The file or folder.
        path: PathBuf,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {tensor} in {}: expected shape {expected:?}, given {given:?}", path.display())]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// The file or folder.
        path: PathBuf,
        /// What the configuration needs.
        expected: Vec<usize>,
        /// What the file holds.
        given: Vec<usize>,
    },
    /// A column of a quantized weight is in a group that there is not.
    #[error("tensor {tensor} in {}: a column in group {given}, expected 0 to {}", path.display(), num_groups - 1)]
    ColumnGroup {
        /// The tensor.
        tensor: String,
        /// The file or folder.
        path: PathBuf,
        /// The group found.
        given: i64,
        /// The groups there are.
        num_groups: usize,
    },
    /// A tensor has a dtype that cannot be used in its place.
    #[error("tensor {tensor} in {}: dtype {given} cannot be used here, expected {expected}", path.display())]
    TensorDType {
        /// The tensor.
        tensor: String,
        /// The file or folder.
        path: PathBuf,
        /// What the file holds.
        given: String,
        /// What would work.
        expected: String,
    },
    /// The tokenizer cannot be made.
    #[error("{} holds no usable tokenizer", path.display())]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: TokenizerError,
    },
    /// An architecture that nobody registered.
    #[error("architecture {given} is not known; known are {}", known.join(", "))]
    UnknownArchitecture {
        /// The name in the configuration.
        given: String,
        /// The registered names, sorted.
        known: Vec<String>,
    },
    /// The model needs something that its architecture's file here does not have.
    #[error("{architecture}: {field} = {given} is not supported, expected {expected}")]
    Unsupported {
        /// The architecture.
        architecture: String,
        /// The field of the configuration.
        field: &'static str,
        /// Its value.
        given: String,
        /// What would work.
        expected: &'static str,
    },
    /// A weight that is no number.
    #[error("tensor {tensor} in {}: element {at} is {value} ({num_bad} of those read are no finite numbers)", path.display())]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The file.
        path: PathBuf,
        /// The first such value.
        value: f32,
        /// Where it is, counted in elements.
        at: u64,
        /// How many were found.
        num_bad: u64,
        /// Bytes of the tensor.
        num_bytes: u64,
    },
    /// A tokenizer with ids that the embedding has no rows for.
    #[error("the tokenizer of {} has ids up to {}, the embedding has {num_rows} rows", path.display(), num_ids - 1)]
    TokenizerSize {
        /// The file or folder.
        path: PathBuf,
        /// The largest id and one.
        num_ids: usize,
        /// Rows of the embedding.
        num_rows: usize,
    },
    /// A special token that the vocabulary does not have.
    #[error("the {role} token {token:?} of {} is not in its vocabulary", path.display())]
    SpecialToken {
        /// The file or folder.
        path: PathBuf,
        /// `bos`, `eos`, `pad` or `unk`.
        role: &'static str,
        /// The token.
        token: String,
    },
    /// Several things are wrong with a model.
    #[error("{} has {} problems:{}", path.display(), problems.len(), lines(problems))]
    Problems {
        /// The file or folder.
        path: PathBuf,
        /// All of them.
        problems: Vec<Error>,
    },
    /// The backend refused a weight or a step.
    #[error("the backend failed")]
    Kernels(#[from] quire_kernels::Error),
}

impl Error {
    /// One error for all of `problems`; `None` for none.
    pub(crate) fn of_problems(path: &std::path::Path, mut problems: Vec<Self>) -> Option<Self> {
        match problems.len() {
            0 | 1 => problems.pop(),
            _ => Some(Self::Problems { path: path.to_owned(), problems }),
        }
    }
}

/// Each problem with its causes, on a line of its own.
fn lines(problems: &[Error]) -> String {
    let line = |problem: &Error| format!("\n  {}", crate::check::Finding::of_error(problem).message);
    problems.iter().map(line).collect()
}
