//! The lines of a trace. The fields are an interface: programs read them.

use std::fmt;

use quire_kernels::Kernels;
use quire_kernels::trace::TraceRecord;
use serde::{Deserialize, Serialize};

/// The version of the format, raised when a line changes.
const VERSION: u32 = 1;

/// The first line: what the trace is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TraceHeader {
    tensor_trace: u32,
    pub(crate) backend: String,
    pub(crate) device: String,
    pub(crate) activation_dtype: String,
    /// The fingerprint of the dispatch table.
    pub(crate) dispatch: String,
}

impl TraceHeader {
    pub(super) fn of(kernels: &Kernels) -> Self {
        let info = kernels.device().info();
        Self {
            tensor_trace: VERSION,
            backend: info.backend.clone(),
            device: info.name.clone(),
            activation_dtype: info.activation_dtype.to_string(),
            dispatch: format!("{:016x}", kernels.dispatch().fingerprint()),
        }
    }

    /// Whether this version reads the rest.
    pub(super) fn is_known(&self) -> bool {
        self.tensor_trace == VERSION
    }
}

impl fmt::Display for TraceHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, device, activation_dtype, dispatch, .. } = self;
        write!(f, "{backend} ({device}), activations {activation_dtype}, dispatch {dispatch}")
    }
}

/// One output of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TraceLine {
    pub(crate) step: u64,
    pub(crate) op_idx: u32,
    pub(crate) op: String,
    pub(crate) ordinal: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<String>,
    pub(crate) tensor: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) fused: bool,
    pub(crate) num_nan: usize,
    pub(crate) num_inf: usize,
    pub(crate) min: Option<f32>,
    pub(crate) max: Option<f32>,
    pub(crate) mean: Option<f64>,
    pub(crate) rms: Option<f64>,
    /// `null` where an element is no finite number.
    pub(crate) samples: Vec<Option<f32>>,
    /// 16 hexadecimal digits: as a number it would lose some of them in other readers.
    pub(crate) hash: String,
}

impl From<&TraceRecord> for TraceLine {
    fn from(record: &TraceRecord) -> Self {
        let stats = &record.stats;
        Self {
            step: record.step,
            op_idx: record.op_idx,
            op: record.op.to_owned(),
            ordinal: record.ordinal,
            weight: record.weight.as_deref().map(str::to_owned),
            tensor: record.tensor.to_owned(),
            dtype: record.dtype.to_string(),
            shape: record.dims.clone(),
            fused: record.is_fused,
            num_nan: stats.num_nan,
            num_inf: stats.num_inf,
            min: stats.min,
            max: stats.max,
            mean: stats.mean,
            rms: stats.rms,
            samples: stats.samples.iter().map(|&v| v.is_finite().then_some(v)).collect(),
            hash: format!("{:016x}", stats.hash),
        }
    }
}

impl TraceLine {
    /// Whether the two are of the same operation on tensors of one shape.
    pub(super) fn matches(&self, other: &Self) -> bool {
        let place = |line: &Self| (line.step, line.op_idx, line.ordinal);
        place(self) == place(other)
            && (&self.op, &self.tensor, &self.shape) == (&other.op, &other.tensor, &other.shape)
    }
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, op_idx, op, ordinal, tensor, shape, .. } = self;
        write!(f, "step {step}, op {op_idx}: {op}[{ordinal}] {tensor} {shape:?}")?;
        self.weight.as_ref().map_or(Ok(()), |weight| write!(f, " ({weight})"))
    }
}
