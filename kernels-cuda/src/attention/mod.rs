//! Paged attention.
//!
//! ```text
//! plan     cuts the rows of a step: few tokens into segments of keys, many into tiles   plan.rs, runs.rs, clusters.rs, tiles.rs
//! forward  enqueues a kernel for each of the two                                         forward.rs, tensor_map.rs
//! write    keys and values to their slots, with rotary positions                         write.rs
//! kernels  which there are, and for what                                                 kernels.rs, shape.rs
//! ```
//!
//! With `--deterministic` every token is computed by the decode kernel, uncut: the keys are then taken in an order
//! that depends on the token's position alone.

mod clusters;
mod forward;
mod kernels;
mod plan;
mod runs;
mod shape;
mod tensor_map;
mod tiles;
mod write;

use std::sync::Arc;

use quire_kernels::{
    AttentionArgs, AttentionKernels, AttentionPlan, DType, Device as _, DeviceId, Dispatch,
    Error as KernelError, KvGroupSpec, KvLayer, KvLayout, Limits, Part, Result, ShapeKey, StepCtx, StepRows,
    Tensor,
};

use self::forward::MAX_HEAD_TILES;
use self::kernels::{Variant, has_clusters, has_wgmma};
use self::plan::Planner;
use self::shape::{BLOCK_SIZES, HEAD_DIMS, HeadShape};
pub(crate) use self::write::KvWriter;
use crate::Error;
use crate::device::{BACKEND, CudaDevice};

/// The attention part.
pub(crate) struct CudaAttention {
    device: Arc<CudaDevice>,
    writer: KvWriter,
    variants: Vec<Variant>,
    planner: Planner,
}

impl CudaAttention {
    pub(crate) fn new(device: Arc<CudaDevice>) -> Result<Self, Error> {
        let max_shared_bytes = device.max_shared_bytes() as usize;
        let mut variants = Vec::new();
        for kv_dtype in HeadShape::kv_dtypes(device.activation_dtype()) {
            for head_dim in HEAD_DIMS {
                let shape = HeadShape { head_dim, kv_dtype };
                if shape.decode_shared_bytes(max_shared_bytes) <= max_shared_bytes
                    && shape.prefill_shared_bytes(max_shared_bytes) <= max_shared_bytes
                {
                    variants.push(Variant::load(&device, shape)?);
                }
            }
        }
        let num_sms = device.num_sms() as usize;
        let is_deterministic = device.is_deterministic();
        let planner = Planner { num_sms, is_deterministic, has_clusters: has_clusters(&device) };
        Ok(Self { writer: KvWriter::new(&device)?, device, variants, planner })
    }

    fn variant(&self, layout: &KvLayout) -> Option<&Variant> {
        let shape = HeadShape { head_dim: layout.head_dim, kv_dtype: layout.dtype };
        self.variants.iter().find(|variant| variant.shape() == shape)
    }
}

impl Part for CudaAttention {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        let (tokens, rows) = (limits.max_num_batched_tokens, limits.max_num_seqs);
        // A run of every key and value head, and so many tiles of query heads: heads are not known here.
        let max_plan_len = self.planner.max_len(tokens, rows, MAX_HEAD_TILES);
        self.planner.max_parts_bytes(MAX_HEAD_TILES) + 4 * max_plan_len
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let line =
            |op: &str, kernel: &str, reason: &str| Dispatch::new(format!("attention{op}"), kernel, reason);
        let write = line(".write_kv", "attention_write", "with rotary positions in one launch");
        if self.device.is_deterministic() {
            return vec![line("", "attention_decode uncut", "one order of keys, whatever the step"), write];
        }
        let few = match self.planner.has_clusters {
            true => line(".few_rows", "attention_decode_cluster", "blocks merge in shared memory"),
            false => {
                line(".few_rows", "attention_decode runs", "a fallback: the device has no clusters of blocks")
            }
        };
        let prefill = match has_wgmma(&self.device) {
            true => line(
                ".prefill",
                "attention_prefill_wgmma, attention_prefill",
                "wgmma: 16-bit heads of 64 and 128",
            ),
            false => line(".prefill", "attention_prefill", "mma.sync: the device has no wgmma"),
        };
        let decode = "runs of keys of one length, query heads of a group in one product";
        vec![line(".decode", "attention_decode runs", decode), few, prefill, write]
    }
}

impl AttentionKernels for CudaAttention {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        let layout = KvLayout::keys_then_values(spec, block_size, BACKEND)?;
        let is_known = BLOCK_SIZES.contains(&block_size)
            && block_size.is_power_of_two()
            && spec.num_kv_heads > 0
            && self.variant(&layout).is_some();
        if is_known { Ok(layout) } else { Err(unsupported(spec.head_dim, spec.dtype, block_size)) }
    }

    fn supports_kv_scales(&self) -> bool {
        true
    }

    fn plan(
        &self,
        ctx: &mut StepCtx,
        key: ShapeKey,
        rows: &StepRows,
        layout: &KvLayout,
    ) -> Result<AttentionPlan> {
        let shape = self.planner.shape(key, layout, MAX_HEAD_TILES);
        let plan = ctx.alloc(DType::I32, &[shape.len()])?;
        ctx.write(&plan, &shape.fill(rows))?;
        Ok(AttentionPlan { tensors: vec![plan] })
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<()> {
        self.writer.write_kv(ctx, k, v, kv, slot_mapping)
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        let variant =
            self.variant(&args.kv.layout).expect("a cache without kernels was refused at its layout");
        ctx.scope(|ctx| variant.forward(ctx, args, self.planner))
    }
}

fn unsupported(head_dim: usize, dtype: DType, block_size: usize) -> KernelError {
    let what = format!("heads of {head_dim} {dtype} in blocks of {block_size} tokens");
    KernelError::Unsupported { backend: BACKEND.to_owned(), part: "attention", what }
}
