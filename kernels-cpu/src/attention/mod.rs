//! Paged attention.
//!
//! ```text
//! forward     cuts the step into tiles of queries, and few long ones into spans of keys   work.rs
//! tile        one tile: running softmax over key tiles, merged span by span               tile.rs, softmax.rs
//! product     scores and weighted values, in registers                                    product.rs, strip.rs
//! cache       blocks of any element type and size, read as tiles of f32                   cache.rs, stored.rs
//! ```

mod cache;
mod product;
mod softmax;
mod stored;
mod strip;
#[cfg(test)]
mod tests;
mod tile;
mod work;

use quire_kernels::{
    AttentionArgs, AttentionKernels, DType, Device as _, DeviceId, Dispatch, Error, KvGroupSpec, KvLayer,
    KvLayout, Limits, Part, Result, StepCtx, Tensor,
};

pub(crate) use cache::{BlockShape, write_rows};

use crate::device::{BACKEND, CpuDevice};

/// Keys of a tile; a span is a whole number of them.
const TILE_KEYS: usize = 64;

/// Keys of a span: enough that merging costs little, few enough that a single long row occupies many threads.
const SPAN_KEYS: usize = 256;

/// The longest head: bounds the scratch of a thread, which is planned before a model is known.
const MAX_HEAD_DIM: usize = 512;

/// The attention part.
#[derive(Debug)]
pub(crate) struct CpuAttention {
    device: CpuDevice,
}

impl CpuAttention {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device }
    }
}

impl Part for CpuAttention {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        let threads = self.device.session().pool().threads();
        work::scratch_bytes(threads, limits.max_num_seqs)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let reason = "one order of positions, whatever the rows and chunks";
        vec![Dispatch::new("attention", format!("paged online softmax {}", self.device.isa()), reason)]
    }
}

impl AttentionKernels for CpuAttention {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        let layout = KvLayout::keys_then_values(spec, block_size, BACKEND)?;
        let dtype_is_known =
            matches!(spec.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2);
        if !dtype_is_known || !(1..=MAX_HEAD_DIM).contains(&spec.head_dim) || block_size == 0 {
            let what = format!("heads of {} {} in blocks of {block_size} tokens", spec.head_dim, spec.dtype);
            return Err(Error::Unsupported { backend: BACKEND.to_owned(), part: "attention", what });
        }
        Ok(layout)
    }

    fn supports_soft_cap(&self) -> bool {
        true
    }

    fn supports_kv_scales(&self) -> bool {
        true
    }

    fn write_kv(
        &self,
        _: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<()> {
        let isa = self.device.isa();
        let shape = BlockShape::of(&kv.layout);
        let mut session = self.device.session();
        let (pool, [k, v, slots], [blocks]) = session.open([k, v, slot_mapping], [&kv.blocks]);
        let (k, v, slots, blocks) = (k.rows::<f32>(), v.rows::<f32>(), slots.slice::<i32>(), blocks.rows());
        write_rows(isa, pool, (k, v), slots, (&blocks, shape), kv.scales);
        Ok(())
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        ctx.scope(|ctx| work::forward(&self.device, ctx, args))
    }
}
