//! Rotary position embedding.

use std::sync::Arc;

use quire_kernels::{
    Device as _, DeviceId, Dispatch, Part, Result, RopeKernels, RopeStyle, RopeTable, StepCtx, Tensor,
};

use crate::Error;
use crate::device::CudaDevice;
use crate::elementwise::{VECTOR, are_vectors, count, one_thread_each, stride, suffix};
use crate::launch::launch;
use crate::memory::address;
use crate::module::Kernel;

/// The rope part.
pub(crate) struct CudaRope {
    device: Arc<CudaDevice>,
    rope: Kernel,
}

impl CudaRope {
    pub(crate) fn new(device: Arc<CudaDevice>) -> std::result::Result<Self, Error> {
        let suffix = suffix(device.activation_dtype());
        Ok(Self { rope: device.kernel("rope", &format!("rope_{suffix}"))?, device })
    }
}

impl Part for CudaRope {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let kernel = format!("rope {}", self.device.activation_dtype());
        vec![Dispatch::new("rope", kernel, "eight pairs a thread; where the fused form is declined")]
    }
}

impl RopeKernels for CudaRope {
    fn rope(
        &self,
        ctx: &mut StepCtx,
        x: &Tensor,
        head_dim: usize,
        positions: &Tensor,
        table: &RopeTable,
    ) -> Result<()> {
        let (rotary_dim, num_tokens) = (table.rotary_dim(), x.num_rows());
        assert!(rotary_dim <= head_dim, "no more of a head is rotated than there is");
        assert!(x.num_columns().is_multiple_of(head_dim), "a row is a whole number of heads");
        assert_eq!(positions.num_elements(), num_tokens, "there is a position for each token");
        let num_heads = x.num_columns() / head_dim;
        // Eight pairs (two vectors) of halves, four pairs (one vector) of neighbours.
        let pairs = if table.style == RopeStyle::Halves { VECTOR } else { VECTOR / 2 };
        let is_vector = are_vectors(&[x, &table.cos_sin])
            && head_dim.is_multiple_of(VECTOR)
            && (rotary_dim / 2).is_multiple_of(pairs);
        let items_per_head = rotary_dim / 2 / if is_vector { pairs } else { 1 };
        let params = RopeParams {
            x: address(x),
            positions: address(positions),
            table: address(&table.cos_sin),
            x_stride: stride(x),
            table_stride: stride(&table.cos_sin),
            num_tokens: count(num_tokens),
            num_heads: count(num_heads),
            head_dim: count(head_dim),
            rotary_dim: count(rotary_dim),
            halves: u32::from(table.style == RopeStyle::Halves),
            is_vector: u32::from(is_vector),
            items_per_head: count(items_per_head),
            unused: 0,
        };
        let grid = one_thread_each(num_tokens * num_heads * items_per_head);
        // SAFETY: the struct is the kernel's; the heads lie in the rows of `x`, and the caller vouches that the
        // positions lie in the table.
        unsafe { launch(ctx, &self.rope, grid, &params) }
    }
}

/// `RopeParams` of `cuda/rope.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RopeParams {
    x: u64,
    positions: u64,
    table: u64,
    x_stride: i64,
    table_stride: i64,
    num_tokens: u32,
    num_heads: u32,
    head_dim: u32,
    rotary_dim: u32,
    halves: u32,
    is_vector: u32,
    items_per_head: u32,
    unused: u32,
}
