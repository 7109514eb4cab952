//! Normalization, residual addition and the gathering of rows.

use std::sync::Arc;

use quire_kernels::{DType, Device as _, DeviceId, Dispatch, NormKernels, Part, Result, StepCtx, Tensor};

use crate::Error;
use crate::device::CudaDevice;
use crate::elementwise::{
    THREADS, VECTOR, are_vectors, count, element_bytes, one_thread_each, stride, suffix,
};
use crate::launch::{Grid, launch};
use crate::memory::address;
use crate::module::Kernel;

/// Columns up to which a warp normalizes a row; it holds four vectors a lane.
const MAX_WARP_COLUMNS: usize = 32 * 4 * VECTOR;

/// Rows a block where a warp normalizes one.
const WARP_ROWS: usize = 4;

/// Threads a block at most.
const MAX_THREADS: usize = 1024;

/// The norm part.
pub(crate) struct CudaNorm {
    device: Arc<CudaDevice>,
    rms_norm: RmsNorm,
    add: Kernel,
    gather_rows: Kernel,
}

impl CudaNorm {
    pub(crate) fn new(device: Arc<CudaDevice>) -> std::result::Result<Self, Error> {
        let suffix = suffix(device.activation_dtype());
        Ok(Self {
            rms_norm: RmsNorm::new(&device)?,
            add: device.kernel("norm", &format!("add_{suffix}"))?,
            gather_rows: device.kernel("norm", "gather_rows")?,
            device,
        })
    }
}

impl Part for CudaNorm {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let dtype = self.device.activation_dtype();
        let reason = "a row in registers, read once; the row's length alone decides how many threads share it; what is \
                      added up over the layers stays in f32";
        vec![Dispatch::new("norm", format!("rms_norm {dtype}, residual f32"), reason)]
    }
}

impl NormKernels for CudaNorm {
    fn rms_norm(&self, ctx: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        self.rms_norm.run(ctx, &RmsNormArgs { x, delta: None, weight, eps, out })
    }

    fn add(&self, ctx: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()> {
        let (rows, columns) = (residual.num_rows(), residual.num_columns());
        assert_eq!((x.num_rows(), x.num_columns()), (rows, columns), "both summands have one shape");
        assert_eq!(residual.dtype(), DType::F32, "type of the residual stream");
        let params = AddParams {
            x: address(x),
            residual: address(residual),
            x_stride: stride(x),
            residual_stride: stride(residual),
            rows: count(rows),
            columns: count(columns),
            is_vector: u32::from(are_vectors(&[x, residual])),
            unused: 0,
        };
        let grid = one_thread_each(rows * columns.div_ceil(VECTOR));
        // SAFETY: the struct is the kernel's; both tensors have `rows` rows of `columns` elements.
        unsafe { launch(ctx, &self.add, grid, &params) }
    }

    fn gather_rows(&self, ctx: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()> {
        /// Bytes of a row that a block copies.
        const BLOCK_BYTES: usize = THREADS as usize * 16;
        assert_eq!(x.num_columns(), out.num_columns(), "rows are copied whole");
        assert_eq!(idx.num_elements(), out.num_rows(), "there is an index for each row");
        let element = element_bytes(x);
        let row_bytes = x.num_columns() * element;
        let params = GatherParams {
            x: address(x),
            idx: address(idx),
            out: address(out),
            x_stride_bytes: (x.row_stride() * element) as i64,
            out_stride_bytes: (out.row_stride() * element) as i64,
            row_bytes: row_bytes as i64,
            is_vector: u32::from(are_vectors(&[x, out])),
            element_bytes: count(element),
        };
        let blocks = [count(out.num_rows()), count(row_bytes.div_ceil(BLOCK_BYTES)), 1];
        let grid = Grid { blocks, threads: THREADS, shared_bytes: 0, overlaps: true };
        // SAFETY: the struct is the kernel's; the rows of `out` are as long as those of `x`, and the caller vouches
        // for the indices.
        unsafe { launch(ctx, &self.gather_rows, grid, &params) }
    }
}

/// The kernels of RMS normalization, with or without a residual addition before it.
pub(crate) struct RmsNorm {
    /// Of the residual stream, in f32.
    stream: RowKernels,
    /// Of activations.
    activation: RowKernels,
}

/// Kernels for one type of row, by how many threads share a row.
struct RowKernels {
    warp: Kernel,
    block: Kernel,
    block2: Kernel,
    any: Kernel,
}

/// Arguments of [`RmsNorm::run`].
pub(crate) struct RmsNormArgs<'a> {
    /// In the activation dtype, or the residual stream, which is updated in place where there is something to add.
    pub(crate) x: &'a Tensor,
    /// What is added before.
    pub(crate) delta: Option<&'a Tensor>,
    pub(crate) weight: &'a Tensor,
    pub(crate) eps: f32,
    /// In the activation dtype; may be an `x` of it.
    pub(crate) out: &'a Tensor,
}

impl RmsNorm {
    pub(crate) fn new(device: &CudaDevice) -> std::result::Result<Self, Error> {
        let suffix = suffix(device.activation_dtype());
        Ok(Self {
            stream: RowKernels::new(device, &format!("f32_{suffix}"))?,
            activation: RowKernels::new(device, suffix)?,
        })
    }

    pub(crate) fn run(&self, ctx: &mut StepCtx, args: &RmsNormArgs<'_>) -> Result<()> {
        let RmsNormArgs { x, delta, weight, eps, out } = args;
        let dims = (x.num_rows(), x.num_columns());
        let same = |other: &Tensor| (other.num_rows(), other.num_columns()) == dims;
        assert!(same(out) && delta.is_none_or(same), "a row is added and normalized to one of its length");
        assert_eq!(weight.num_elements(), dims.1, "there is a weight for each column");
        let is_stream = x.dtype() == DType::F32;
        assert!(is_stream || delta.is_none(), "only the residual stream is added to");
        let params = NormParams {
            x: address(x),
            delta: delta.map_or(0, address),
            weight: address(weight),
            out: address(out),
            x_stride: stride(x),
            delta_stride: delta.map_or(0, stride),
            out_stride: stride(out),
            rows: count(dims.0),
            columns: count(dims.1),
            eps: *eps,
            unused: 0,
        };
        let is_vector = are_vectors(&[x, delta.unwrap_or(x), out]) && address(weight).is_multiple_of(16);
        let kernels = if is_stream { &self.stream } else { &self.activation };
        let (kernel, grid) = kernels.shape(dims.0, dims.1, is_vector);
        // SAFETY: the struct is the kernel's; the tensors have the rows and columns that it names.
        unsafe { launch(ctx, kernel, grid, &params) }
    }
}

impl RowKernels {
    fn new(device: &CudaDevice, suffix: &str) -> std::result::Result<Self, Error> {
        let kernel = |shape: &str| device.kernel("norm", &format!("rms_norm_{shape}_{suffix}"));
        Ok(Self {
            warp: kernel("warp")?,
            block: kernel("block")?,
            block2: kernel("block2")?,
            any: kernel("any")?,
        })
    }

    /// The kernel is chosen by the columns alone: a row's sum has one order whatever the number of rows.
    fn shape(&self, rows: usize, columns: usize, is_vector: bool) -> (&Kernel, Grid) {
        let vectors = columns / VECTOR;
        let (kernel, blocks, threads) = if !is_vector || vectors > 2 * MAX_THREADS {
            (&self.any, rows, THREADS as usize)
        } else if columns <= MAX_WARP_COLUMNS {
            (&self.warp, rows.div_ceil(WARP_ROWS), 32 * WARP_ROWS)
        } else if vectors <= MAX_THREADS {
            (&self.block, rows, vectors.next_multiple_of(32))
        } else {
            (&self.block2, rows, vectors.div_ceil(2).next_multiple_of(32))
        };
        (
            kernel,
            Grid { blocks: [count(blocks), 1, 1], threads: count(threads), shared_bytes: 0, overlaps: true },
        )
    }
}

/// `NormParams` of `cuda/norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct NormParams {
    x: u64,
    delta: u64,
    weight: u64,
    out: u64,
    x_stride: i64,
    delta_stride: i64,
    out_stride: i64,
    rows: u32,
    columns: u32,
    eps: f32,
    unused: u32,
}

/// `AddParams` of `cuda/norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AddParams {
    x: u64,
    residual: u64,
    x_stride: i64,
    residual_stride: i64,
    rows: u32,
    columns: u32,
    is_vector: u32,
    unused: u32,
}

/// `GatherParams` of `cuda/norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GatherParams {
    x: u64,
    idx: u64,
    out: u64,
    x_stride_bytes: i64,
    out_stride_bytes: i64,
    row_bytes: i64,
    is_vector: u32,
    element_bytes: u32,
}
