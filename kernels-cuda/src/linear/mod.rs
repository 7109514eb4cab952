//! Linear layers: `y = x Wᵀ + b` for dense and block-quantized weights.
//!
//! | rows of x | dense | quantized |
//! |---|---|---|
//! | few | own kernels at the speed of memory, `cuda/linear_few.cu` | own kernels straight from repacked blocks, `cuda/linear_quant_few.cu` |
//! | many | cuBLASLt, the first answer of its heuristics | dequantized a slab at a time into scratch that the second cache holds, then as dense |
//!
//! Where the two meet was measured: [`plan`]. Without cuBLASLt, or where it has no algorithm, `cuda/linear_many.cu` serves.
//!
//! **`--deterministic`**: every sum is one chain of tensor-core products in one order, which the weight's shape alone
//! decides ([`plan::dense_slices`]). The kernels for few tokens do it for each of their tokens, a column of the product, which
//! no other column touches; `linear_many.cu` repeats the same chain for many. Quantized layers take the kernels for few
//! tokens, tile by tile. cuBLASLt is then not used.
//!
//! Weights are converted to the activation dtype when they are packed; `docs/kernels/linear.md` has layouts and numbers.

mod format;
mod kernel_set;
mod layer;
mod library;
mod pack;
mod params;
mod plan;
mod product;
mod segment;

use std::sync::Arc;

use quire_kernels::{
    Activation, DType, Device as _, DeviceId, Dispatch, HostWeight, Limits, Linear, LinearKernels, Part,
    Result, StepCtx, Tensor,
};

use self::format::Format;
use self::kernel_set::KernelSet;
use self::layer::PackedLinear;
use self::library::Library;
use self::params::{Convert, count};
use self::plan::{MAX_FEW_TOKENS, Machine, SLAB_BYTES};
use self::segment::COLUMN_ALIGN;
use crate::cublaslt::{CublasLt, WORKSPACE_BYTES};
use crate::device::CudaDevice;
use crate::launch::{Grid, launch};
use crate::memory::address;
use crate::{Error, KernelTuning};

/// Bytes of a weight's element in the activation dtype.
const DENSE_BYTES: usize = 2;

/// What all layers of a device share.
struct Shared {
    device: Arc<CudaDevice>,
    machine: Machine,
    kernels: KernelSet,
    /// None where it cannot be loaded, or where results may not depend on its choices.
    library: Option<CublasLt>,
    /// What serves many tokens.
    many_kernel: String,
    /// Why that.
    reason: String,
}

/// The linear layers of a CUDA device.
pub(crate) struct CudaLinear {
    shared: Arc<Shared>,
}

impl CudaLinear {
    /// Loads the kernels and cuBLASLt.
    ///
    /// # Errors
    ///
    /// Those of [`CudaDevice::kernel`]. A missing cuBLASLt is a warning: own kernels serve, slower.
    pub(crate) fn new(device: Arc<CudaDevice>, tuning: Option<&KernelTuning>) -> Result<Self, Error> {
        device.set_current()?;
        let kernels = KernelSet::load(&device)?;
        let Library { library, name, reason } = Library::open(&device, tuning);
        let machine =
            Machine { num_sms: device.num_sms() as usize, shared_bytes: device.max_shared_bytes() as usize };
        Ok(Self { shared: Arc::new(Shared { device, machine, kernels, library, many_kernel: name, reason }) })
    }
}

impl Shared {
    /// The kernels of a weight dtype, in words.
    fn kernel_name(&self, dtype: DType) -> String {
        let many = &self.many_kernel;
        match Format::of(dtype) {
            None if dtype.is_quantized() => {
                format!(
                    "dequantized to {} when it is loaded: no kernel of its own",
                    self.device.activation_dtype()
                )
            }
            _ if !dtype.is_quantized() => {
                format!("{} mma-m16n8k16 for few tokens, {many}", self.device.activation_dtype())
            }
            Some(format) if self.device.is_deterministic() => {
                format!("{} records mma-m16n8k16", format.name())
            }
            format => {
                let name = format.map_or("no", Format::name);
                format!("{name} records mma-m16n8k16 for few tokens, dequantize + {many}")
            }
        }
    }
}

impl Part for CudaLinear {
    fn device(&self) -> DeviceId {
        self.shared.device.id()
    }

    /// The library's workspace, and a slab of dequantized rows.
    fn scratch_bytes(&self, limits: &Limits) -> usize {
        if limits.max_num_batched_tokens <= MAX_FEW_TOKENS {
            return 0;
        }
        let workspace = if self.shared.library.is_some() { WORKSPACE_BYTES } else { 0 };
        let slab = if self.shared.device.is_deterministic() { 0 } else { SLAB_BYTES };
        workspace + slab
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let weights = DType::ALL.into_iter().filter(|dtype| dtype.is_float() || dtype.is_quantized());
        let line = |dtype: DType| {
            Dispatch::new(
                format!("linear.{dtype}"),
                self.shared.kernel_name(dtype),
                self.shared.reason.clone(),
            )
        };
        weights.map(line).collect()
    }
}

impl LinearKernels for CudaLinear {
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        HostWeight::check_merged(weights)?;
        Ok(Box::new(PackedLinear::new(self.shared.clone(), pack::pack(&self.shared, weights)?, weights)))
    }

    fn supports(&self, dtype: DType) -> bool {
        dtype.is_float() || dtype.is_quantized()
    }

    /// Block types without a format of records become dense.
    fn packed_bytes(&self, dtype: DType, num_bytes: usize) -> usize {
        match Format::of(dtype) {
            None => num_bytes.max(num_bytes / dtype.block_bytes() * dtype.block_len() * DENSE_BYTES),
            Some(_) => num_bytes,
        }
    }

    /// The kernels read 64 columns of a row at once. Rows that are no multiple of that (no model known has such) are copied to where they do, with zeros behind them.
    fn layout_activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        let columns = x.num_columns();
        let prepared = if columns.is_multiple_of(COLUMN_ALIGN) {
            Vec::new()
        } else {
            vec![ctx.alloc(x.dtype(), &[x.num_rows(), columns.next_multiple_of(COLUMN_ALIGN)])?]
        };
        Ok(Activation { x: x.clone(), prepared })
    }

    fn prepare(&self, ctx: &mut StepCtx, activation: &Activation) -> Result<()> {
        let Some(padded) = activation.prepared.first() else { return Ok(()) };
        let x = &activation.x;
        let kernel = self.shared.kernels.convert(x.dtype()).expect("activations are bf16 or f16");
        let params = Convert {
            from: address(x),
            to: address(padded),
            columns: count(x.num_columns()),
            in_stride: count(x.row_stride()),
            out_columns: count(padded.num_columns()),
            pad: 0,
        };
        let grid =
            Grid { blocks: [count(x.num_rows()), 1, 1], threads: 256, shared_bytes: 0, overlaps: true };
        // SAFETY: a block copies a row of x, as its shape says, to the row of as many columns or more.
        unsafe { launch(ctx, kernel, grid, &params) }
    }

    fn activation_bytes(&self, num_tokens: usize, in_features: usize) -> usize {
        match in_features % COLUMN_ALIGN {
            0 => 0,
            _ => (num_tokens * in_features.next_multiple_of(COLUMN_ALIGN) * 2).next_multiple_of(256),
        }
    }
}
