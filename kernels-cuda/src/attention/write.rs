//! Writing keys and values to their slots, also together with the rotation of queries and keys.

use quire_kernels::{DType, KvLayer, Result, RopeStyle, RopeTable, RopeWriteKv, StepCtx, Tensor};

use super::shape::HeadShape;
use crate::Error;
use crate::device::CudaDevice;
use crate::launch::{Grid, launch};
use crate::memory::address;
use crate::module::Kernel;

const FAMILY: &str = "attention_write";
const THREADS: usize = 128;

/// `WriteParams` of `attention_write.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct WriteParams {
    q: u64,
    k: u64,
    v: u64,
    blocks: u64,
    slots: u64,
    positions: u64,
    cos_sin: u64,
    block_bytes: i64,
    q_stride: i32,
    k_stride: i32,
    v_stride: i32,
    num_tokens: i32,
    num_heads: i32,
    num_kv_heads: i32,
    head_dim: i32,
    rotary_dim: i32,
    is_interleaved: i32,
    block_shift: i32,
    k_scale: f32,
    v_scale: f32,
}

/// The kernels that write the cache.
pub(crate) struct KvWriter {
    kernels: Vec<Kernels>,
}

/// Those of one dtype.
struct Kernels {
    kv_dtype: DType,
    /// Vectors of eight elements.
    wide: Kernel,
    /// Single elements.
    narrow: Kernel,
}

/// What is rotated before it is written.
#[derive(Clone, Copy)]
struct Rotation<'a> {
    q: &'a Tensor,
    positions: &'a Tensor,
    table: &'a RopeTable,
}

impl KvWriter {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self, Error> {
        let activation = device.activation_dtype();
        let kernels = HeadShape::kv_dtypes(activation).into_iter().map(|kv_dtype| {
            let kernel =
                |width| device.kernel(FAMILY, &format!("attention_write_{activation}_{kv_dtype}_{width}"));
            Ok(Kernels { kv_dtype, wide: kernel("wide")?, narrow: kernel("narrow")? })
        });
        Ok(Self { kernels: kernels.collect::<Result<_, Error>>()? })
    }

    /// See [`AttentionKernels::write_kv`](quire_kernels::AttentionKernels::write_kv).
    pub(crate) fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slots: &Tensor,
    ) -> Result<()> {
        self.enqueue(ctx, [k, v, slots], kv, None)
    }

    /// See [`rope_write_kv`](quire_kernels::rope_write_kv): all of it in one launch.
    pub(crate) fn rope_write_kv(&self, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<()> {
        let rotation = Rotation { q: args.q, positions: &args.step.positions, table: args.table };
        self.enqueue(ctx, [args.k, args.v, &args.step.slot_mapping], args.kv, Some(rotation))
    }

    fn enqueue(
        &self,
        ctx: &mut StepCtx,
        [k, v, slots]: [&Tensor; 3],
        kv: &KvLayer,
        rotation: Option<Rotation<'_>>,
    ) -> Result<()> {
        let params = params([k, v, slots], kv, rotation);
        let kernels = self.kernels.iter().find(|kernels| kernels.kv_dtype == kv.layout.dtype);
        let kernels = kernels.expect("a cache of another dtype was refused at its layout");
        let is_wide = params.is_wide();
        let (kernel, width) = if is_wide { (&kernels.wide, 8) } else { (&kernels.narrow, 1) };
        let heads = (params.num_heads + 2 * params.num_kv_heads) as usize;
        let groups = params.num_tokens as usize * heads * (kv.layout.head_dim / (2 * width));
        let blocks = [groups.div_ceil(THREADS) as u32, 1, 1];
        let grid = Grid { blocks, threads: THREADS as u32, shared_bytes: 0, overlaps: true };
        // SAFETY: the struct mirrors the kernel's. Every address is that of a tensor of this device with the
        // shape that was checked above; slots lie in the cache, as the caller of the trait promises.
        unsafe { launch(ctx, kernel, grid, &params) }
    }
}

/// # Panics
///
/// Where the shapes do not fit together: the kernel would leave the tensors.
fn params([k, v, slots]: [&Tensor; 3], kv: &KvLayer, rotation: Option<Rotation<'_>>) -> WriteParams {
    let layout = &kv.layout;
    let (num_tokens, columns) = (k.num_rows(), layout.num_kv_heads * layout.head_dim);
    assert!(
        k.num_columns() == columns && v.dims() == k.dims() && slots.num_elements() == num_tokens,
        "keys {k:?}, values {v:?} and slots {slots:?} of {} heads of {}",
        layout.num_kv_heads,
        layout.head_dim
    );
    let mut params = WriteParams {
        q: 0,
        k: address(k),
        v: address(v),
        blocks: address(&kv.blocks),
        slots: address(slots),
        positions: 0,
        cos_sin: 0,
        block_bytes: layout.block_bytes as i64,
        q_stride: 0,
        k_stride: k.row_stride() as i32,
        v_stride: v.row_stride() as i32,
        num_tokens: num_tokens as i32,
        num_heads: 0,
        num_kv_heads: layout.num_kv_heads as i32,
        head_dim: layout.head_dim as i32,
        rotary_dim: 0,
        is_interleaved: 0,
        block_shift: layout.block_size.trailing_zeros() as i32,
        k_scale: kv.scales.k,
        v_scale: kv.scales.v,
    };
    if let Some(Rotation { q, positions, table }) = rotation {
        assert!(
            q.num_rows() == num_tokens
                && q.num_columns().is_multiple_of(layout.head_dim)
                && positions.num_elements() == num_tokens
                && table.rotary_dim() <= layout.head_dim
                && table.rotary_dim().is_multiple_of(2),
            "queries {q:?} and positions {positions:?}, {} of {} elements rotated",
            table.rotary_dim(),
            layout.head_dim
        );
        params.q = address(q);
        params.q_stride = q.row_stride() as i32;
        params.num_heads = (q.num_columns() / layout.head_dim) as i32;
        params.positions = address(positions);
        params.cos_sin = address(&table.cos_sin);
        params.rotary_dim = table.rotary_dim() as i32;
        params.is_interleaved = i32::from(table.style == RopeStyle::Interleaved);
    }
    params
}

impl WriteParams {
    /// Whether vectors of eight elements are whole and aligned everywhere.
    fn is_wide(&self) -> bool {
        let strides = [self.q_stride, self.k_stride, self.v_stride];
        let addresses = [self.q, self.k, self.v, self.blocks, self.block_bytes as u64];
        self.head_dim % 16 == 0
            && self.rotary_dim % 16 == 0
            && strides.iter().all(|stride| stride % 8 == 0)
            && addresses.iter().all(|address| address % 16 == 0)
    }
}
