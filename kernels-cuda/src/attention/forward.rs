//! The launches of one layer.

use std::sync::Arc;

use quire_kernels::{AttentionArgs, DType, Error as KernelError, Result, StepCtx, Tensor};

use super::plan::{PlanShape, Planner};
use super::runs;
use super::shape::{HEAD_DIMS, HeadShape, TILE_HEADS};
use crate::Error;
use crate::device::{BACKEND, CudaDevice};
use crate::launch::{Grid, launch};
use crate::memory::address;
use crate::module::Kernel;

/// Most tiles of query heads that share a key and value head.
pub(super) const MAX_HEAD_TILES: usize = 4;

const DECODE_THREADS: u32 = 128;

/// What the two kernels are told alike: the tail of `DecodeParams` and of `PrefillParams`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Shape {
    block_bytes: i64,
    q_stride: i32,
    out_stride: i32,
    table_stride: i32,
    block_shift: i32,
    num_kv_heads: i32,
    group: i32,
    window: i32,
    scale_log2: f32,
}

/// The tensors that both read and write: the head of the two structs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Tensors {
    q: u64,
    out: u64,
    blocks: u64,
    block_tables: u64,
}

/// `DecodeParams` of `attention_decode.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct DecodeParams {
    tensors: Tensors,
    segments: u64,
    run_starts: u64,
    counters: u64,
    parts: u64,
    part_stats: u64,
    shape: Shape,
}

/// `PrefillParams` of `attention_prefill.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PrefillParams {
    tensors: Tensors,
    tiles: u64,
    shape: Shape,
}

/// The kernels for one kind of cache.
pub(super) struct Variant {
    shape: HeadShape,
    decode: Kernel,
    decode_shared_bytes: u32,
    prefill: Kernel,
    prefill_shared_bytes: u32,
}

/// Most bytes of the parts of cut rows.
pub(super) fn max_parts_bytes(planner: Planner) -> usize {
    if planner.is_deterministic {
        return 0;
    }
    let head_dim = HEAD_DIMS[HEAD_DIMS.len() - 1];
    runs::max_parts(planner.num_slots) * MAX_HEAD_TILES * TILE_HEADS * (head_dim + 2) * 4
}

impl Variant {
    pub(super) fn load(device: &Arc<CudaDevice>, shape: HeadShape) -> Result<Self, Error> {
        let (activation, max_shared) = (device.activation_dtype(), device.max_shared_bytes() as usize);
        let (decode_family, prefill_family) = match activation {
            DType::F16 => ("attention_decode_f16", "attention_prefill_f16"),
            _ => ("attention_decode_bf16", "attention_prefill_bf16"),
        };
        let suffix = format!("{}_{}", shape.kv_dtype, shape.head_dim);
        let load = |family, shared_bytes: usize| {
            let kernel = device.kernel(family, &format!("{family}_{suffix}"))?;
            kernel.allow_shared_bytes(shared_bytes as u32)?;
            Ok::<_, Error>((kernel, shared_bytes as u32))
        };
        let (decode, decode_shared_bytes) = load(decode_family, shape.decode_shared_bytes(max_shared))?;
        let (prefill, prefill_shared_bytes) = load(prefill_family, shape.prefill_shared_bytes(max_shared))?;
        Ok(Self { shape, decode, decode_shared_bytes, prefill, prefill_shared_bytes })
    }

    pub(super) fn shape(&self) -> HeadShape {
        self.shape
    }

    /// Enqueues the kernels of one layer.
    pub(super) fn forward(
        &self,
        ctx: &mut StepCtx,
        args: &AttentionArgs<'_>,
        planner: Planner,
    ) -> Result<()> {
        let key = args.step.key;
        if key.num_tokens == 0 {
            return Ok(());
        }
        let layout = &args.kv.layout;
        let shape = shape_of(args);
        let head_tiles = (shape.group as usize).div_ceil(TILE_HEADS);
        if head_tiles > MAX_HEAD_TILES {
            let what = format!("{} query heads to a key and value head", shape.group);
            return Err(KernelError::Unsupported { backend: BACKEND.to_owned(), part: "attention", what });
        }
        let num_heads = layout.num_kv_heads * head_tiles;
        let plan_shape = planner.shape(key, layout.num_kv_heads, layout.num_kv_heads * MAX_HEAD_TILES);
        let plan = plan_of(args, plan_shape);
        self.decode(ctx, args, (plan, plan_shape), num_heads)?;
        if plan_shape.max_tiles == 0 {
            return Ok(());
        }
        let tiles = address(plan) + 4 * plan_shape.tiles().start as u64;
        let params = PrefillParams { tensors: tensors_of(args), tiles, shape };
        let grid = Grid {
            blocks: [(layout.num_kv_heads as i32 * shape.group) as u32, plan_shape.max_tiles as u32, 1],
            threads: self.shape.prefill_threads(),
            shared_bytes: self.prefill_shared_bytes,
            overlaps: true,
        };
        // SAFETY: the struct mirrors the kernel's; the tensors were checked against each other; rows, tokens and
        // positions in the plan are those of the step, whose block tables hold a block for every key seen.
        unsafe { launch(ctx, &self.prefill, grid, &params) }
    }

    fn decode(
        &self,
        ctx: &mut StepCtx,
        args: &AttentionArgs<'_>,
        (plan, plan_shape): (&Tensor, PlanShape),
        num_heads: usize,
    ) -> Result<()> {
        let num_rows = plan_shape.max_parts() * num_heads * TILE_HEADS;
        let parts = ctx.alloc(DType::F32, &[num_rows, self.shape.head_dim])?;
        let part_stats = ctx.alloc(DType::F32, &[num_rows, 2])?;
        let in_plan = |start: usize| address(plan) + 4 * start as u64;
        let params = DecodeParams {
            tensors: tensors_of(args),
            segments: in_plan(plan_shape.segments().start),
            run_starts: in_plan(plan_shape.starts().start),
            counters: in_plan(plan_shape.counters().start),
            parts: address(&parts),
            part_stats: address(&part_stats),
            shape: shape_of(args),
        };
        let grid = Grid {
            blocks: [plan_shape.num_runs as u32, num_heads as u32, 1],
            threads: DECODE_THREADS,
            shared_bytes: self.decode_shared_bytes,
            overlaps: true,
        };
        // SAFETY: as in `forward`; the parts are as many as the plan of this shape may make.
        unsafe { launch(ctx, &self.decode, grid, &params) }
    }
}

/// # Panics
///
/// Where the plan is not one for this step.
fn plan_of<'a>(args: &AttentionArgs<'a>, shape: PlanShape) -> &'a Tensor {
    let plan = args.plan.tensors.first().expect("the step was planned");
    assert_eq!(plan.num_elements(), shape.len(), "the plan of another shape of step");
    plan
}

/// # Panics
///
/// Where the shapes do not fit together or vectors are not aligned: the kernels would leave the tensors.
fn shape_of(args: &AttentionArgs<'_>) -> Shape {
    let (layout, q, out, step) = (&args.kv.layout, args.q, args.out, args.step);
    let kv_columns = layout.num_kv_heads * layout.head_dim;
    assert!(
        q.num_columns().is_multiple_of(kv_columns)
            && out.dims() == q.dims()
            && q.num_rows() == step.key.num_tokens,
        "queries {q:?} and results {out:?} of {} tokens over {} heads of {}",
        step.key.num_tokens,
        layout.num_kv_heads,
        layout.head_dim
    );
    let is_aligned = |x: &Tensor| address(x).is_multiple_of(16) && x.row_stride().is_multiple_of(8);
    assert!(is_aligned(q) && is_aligned(out), "rows of queries and results start at multiples of 16 bytes");
    Shape {
        block_bytes: layout.block_bytes as i64,
        q_stride: q.row_stride() as i32,
        out_stride: out.row_stride() as i32,
        table_stride: step.block_tables.row_stride() as i32,
        block_shift: layout.block_size.trailing_zeros() as i32,
        num_kv_heads: layout.num_kv_heads as i32,
        group: (q.num_columns() / kv_columns) as i32,
        window: args.window.map_or(0, |window| i32::try_from(window).unwrap_or(i32::MAX)),
        scale_log2: args.scale * std::f32::consts::LOG2_E,
    }
}

fn tensors_of(args: &AttentionArgs<'_>) -> Tensors {
    Tensors {
        q: address(args.q),
        out: address(args.out),
        blocks: address(&args.kv.blocks),
        block_tables: address(&args.step.block_tables),
    }
}
