//! What the tensors of a model take, and whether they are there.

use std::collections::{BTreeMap, BTreeSet};

use quire_kernels::DType;

use super::{Checkpoint, TensorInfo, TensorSpec};
use crate::error::{Error, Result};

/// What the tensors of a model take, without reading them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightSummary {
    /// Elements of all tensors.
    pub num_parameters: u64,
    /// Bytes of all tensors in the dtype they are handed out in.
    pub num_bytes: u64,
    /// Tensors and bytes by that dtype.
    pub by_dtype: BTreeMap<DType, (usize, u64)>,
    /// The dtypes of matrices: those that linear layers compute with.
    pub matrix_dtypes: BTreeSet<DType>,
    /// The dtypes of matrices whose elements have scales beside them.
    pub scaled_dtypes: BTreeSet<DType>,
    /// Tensors of the checkpoint that the model does not use, sorted.
    pub unused: Vec<String>,
}

impl Checkpoint {
    /// Checks that every tensor of `specs` is there in its shape, and says what they take. Tensors that
    /// the model would not use are listed, and warned about.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`]; [`Error::Problems`] where several do not fit.
    pub fn check(&self, specs: &[TensorSpec]) -> Result<WeightSummary> {
        let mut errors = Vec::new();
        let summary = self.summarize(specs, &mut errors);
        if let Some(error) = Error::of_problems(&self.path, errors) {
            return Err(error);
        }
        if !summary.unused.is_empty() {
            let stored_unused: Vec<_> = summary.unused.iter().map(|name| self.stored_name(name)).collect();
            tracing::warn!(
                target: "quire::models",
                path = %self.path.display(),
                tensors = stored_unused.join(", "),
                "the checkpoint holds tensors that the model does not use"
            );
        }
        Ok(summary)
    }

    /// What the tensors of `specs` take, with an error for each that is not there or not as it must be.
    pub(crate) fn summarize(&self, specs: &[TensorSpec], errors: &mut Vec<Error>) -> WeightSummary {
        let mut summary = WeightSummary::default();
        for spec in specs {
            match self.checked_info(spec) {
                Ok(info) => self.count(spec, &info, &mut summary, errors),
                Err(Error::MissingTensor { .. }) if self.source.is_lost(&spec.name) => {}
                Err(error) => errors.push(error),
            }
        }
        let used: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        summary.unused =
            self.source.names().into_iter().filter(|name| !used.contains(name.as_str())).collect();
        summary
    }

    fn count(
        &self,
        spec: &TensorSpec,
        info: &TensorInfo,
        summary: &mut WeightSummary,
        errors: &mut Vec<Error>,
    ) {
        if !(info.dtype.is_float() || info.dtype.is_quantized() || info.scale_bytes.is_some()) {
            errors.push(self.refuse_dtype(spec, info.dtype));
        }
        let num_elements = info.shape.iter().product::<usize>();
        let (dtype, scale_bytes) = self.read_as(spec, info);
        let num_bytes = (dtype.bytes_for(num_elements).unwrap_or(0) + scale_bytes.unwrap_or(0)) as u64;
        match scale_bytes {
            _ if info.shape.len() < 2 => false,
            Some(_) => summary.scaled_dtypes.insert(dtype),
            None => summary.matrix_dtypes.insert(dtype),
        };
        let entry = summary.by_dtype.entry(dtype).or_default();
        *entry = (entry.0 + 1, entry.1 + num_bytes);
        summary.num_parameters += num_elements as u64;
        summary.num_bytes += num_bytes;
    }
}
