//! Where tensors come from.

use std::fmt::Debug;
use std::path::PathBuf;

use quire_kernels::DType;

use crate::error::Result;
use crate::mmap::TensorBytes;

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in a Hugging Face checkpoint.
    pub name: String,
    /// Its shape, `[rows, columns]` for a matrix.
    pub shape: Vec<usize>,
}

/// What is known of a tensor before its bytes are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its dtype as stored.
    pub dtype: DType,
    /// Its shape as stored, the slowest dimension first.
    pub shape: Vec<usize>,
    /// The file it lies in.
    pub path: PathBuf,
}

/// A tensor in host memory.
#[derive(Debug, Clone)]
pub struct HostTensor {
    /// Its dtype.
    pub dtype: DType,
    /// Its shape, the slowest dimension first.
    pub shape: Vec<usize>,
    /// Its elements, row by row.
    pub bytes: TensorBytes,
}

/// A set of tensors under the names of Hugging Face checkpoints. Implemented for GGUF files, folders of
/// safetensors and random weights; implement it to read weights from anywhere else.
pub trait TensorSource: Debug + Send + Sync {
    /// A word for the kind of source.
    fn format(&self) -> &'static str;

    /// What the files call the tensor that is `name` here: for messages.
    fn stored_name(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Every tensor's name, sorted; may be empty where tensors are made to order.
    fn names(&self) -> Vec<String>;

    /// Whether there is a tensor of this name.
    fn contains(&self, name: &str) -> bool;

    /// What is known of the tensor that `spec` names; its shape is the stored one, whatever `spec` says.
    ///
    /// # Errors
    /// [`Error::TensorDType`](crate::Error::TensorDType) where its dtype has no name here.
    fn info(&self, spec: &TensorSpec) -> Result<Option<TensorInfo>>;

    /// Reads the tensor that `spec` names, which [`TensorSource::info`] has been asked for before.
    ///
    /// # Errors
    /// [`Error::MissingTensor`](crate::Error::MissingTensor) where there is none.
    fn tensor(&self, spec: &TensorSpec) -> Result<HostTensor>;
}

impl TensorSpec {
    /// A tensor of this name and shape.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec() }
    }
}
