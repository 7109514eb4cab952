//! Where tensors come from.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use quire_kernels::{DType, HostWeight, WeightScales};

use crate::check::Finding;
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
    /// Bytes of the scales and zero points beside it, where its elements have some.
    pub scale_bytes: Option<usize>,
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
    /// What the elements are multiplied with, where they do not say it themselves.
    pub scales: Option<HostScales>,
}

/// Scales beside the elements of a matrix, as [`WeightScales`] has them.
#[derive(Debug, Clone, PartialEq)]
pub struct HostScales {
    /// Rows and columns that share a scale.
    pub block: [usize; 2],
    /// A scale for each block, row-major.
    pub scales: Vec<f32>,
    /// A zero point for each block; `None` for zeros of 0.
    pub zeros: Option<Vec<u8>>,
    /// The block column of each column, where they are not in order.
    pub column_groups: Option<Vec<u32>>,
}

impl HostScales {
    /// The same, borrowed.
    pub fn as_weight_scales(&self) -> WeightScales<'_> {
        WeightScales {
            block: self.block,
            scales: &self.scales,
            zeros: self.zeros.as_deref(),
            column_groups: self.column_groups.as_deref(),
        }
    }
}

impl HostTensor {
    /// A matrix as a backend packs it. A vector counts as one row.
    pub fn as_host_weight<'a>(&'a self, name: &'a str, bias: Option<&'a [f32]>) -> HostWeight<'a> {
        let (columns, leading) = self.shape.split_last().map_or((1, &[][..]), |(last, rest)| (*last, rest));
        HostWeight {
            name,
            dtype: self.dtype,
            rows: leading.iter().product(),
            columns,
            data: &self.bytes,
            scales: self.scales.as_ref().map(HostScales::as_weight_scales),
            bias,
        }
    }
}

/// A piece of a tensor as it is stored: its elements, or scales beside them.
#[derive(Debug, Clone)]
pub struct StoredPart {
    /// Its name in the file.
    pub name: String,
    /// The file it lies in.
    pub path: PathBuf,
    /// Its dtype.
    pub dtype: DType,
    /// Its elements.
    pub bytes: TensorBytes,
}

/// Places of a tensor that are looked at, and the elements of each.
const NUM_SAMPLES: usize = 8;
const SAMPLE_ELEMENTS: usize = 512;

impl StoredPart {
    /// How many elements there are.
    pub fn num_elements(&self) -> usize {
        self.bytes.len() / self.dtype.block_bytes() * self.dtype.block_len()
    }

    /// The elements of a range, which must be whole blocks of it.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn elements(&self, range: &Range<usize>) -> &[u8] {
        let (block_len, block_bytes) = (self.dtype.block_len(), self.dtype.block_bytes());
        &self.bytes[range.start / block_len * block_bytes..range.end / block_len * block_bytes]
    }

    /// All elements in runs of `len`, or one run of `len` every `step`; both are rounded to whole blocks.
    pub(crate) fn runs(&self, len: usize, step: usize) -> Vec<Range<usize>> {
        let (all, block_len) = (self.num_elements(), self.dtype.block_len());
        let step = (step / block_len * block_len).max(block_len);
        (0..all).step_by(step).map(|start| start..all.min(start + len)).collect()
    }

    /// A few places of a tensor; all of a small one.
    pub(crate) fn samples(&self) -> Vec<Range<usize>> {
        let all = self.num_elements();
        if all <= NUM_SAMPLES * SAMPLE_ELEMENTS {
            return self.runs(all.max(1), all.max(1));
        }
        let mut samples = self.runs(SAMPLE_ELEMENTS, all / NUM_SAMPLES);
        // The end of a file is what a broken transfer lacks.
        samples.push(all - SAMPLE_ELEMENTS..all);
        samples
    }
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

    /// Whether a tensor is missing for a reason that opening the source has told.
    fn is_lost(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// The pieces of a tensor as they are stored, for a look at their values; empty where it is made to order.
    fn parts(&self, spec: &TensorSpec) -> Vec<StoredPart> {
        let _ = spec;
        Vec::new()
    }

    /// What stands in front of the tensors in each file: names, shapes and places.
    fn headers(&self) -> Vec<TensorBytes> {
        Vec::new()
    }

    /// The files that tensors lie in, with their lengths in bytes.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        Vec::new()
    }

    /// What there is to say of the files that is no problem: those that are not read, totals that are wrong.
    fn notes(&self) -> Vec<Finding> {
        Vec::new()
    }

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
