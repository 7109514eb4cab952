//! The launches of one layer.

use quire_kernels::{AttentionArgs, DType, Error as KernelError, Result, StepCtx, Tensor};

use super::kernels::{Prefill, Variant};
use super::plan::{Cut, PlanShape, Planner};
use super::shape::TILE_HEADS;
use super::tensor_map::TensorMap;
use crate::device::BACKEND;
use crate::launch::launch;
use crate::memory::address;

/// Most tiles of query heads that share a key and value head.
pub(super) const MAX_HEAD_TILES: usize = 4;

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
    value_scale: f32,
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

/// `WideParams` of `attention_prefill_wgmma.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct WideParams {
    map: TensorMap,
    prefill: PrefillParams,
    max_tiles: i32,
}

impl Variant {
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
        let plan_shape = planner.shape(key, layout, MAX_HEAD_TILES);
        let plan = plan_of(args, plan_shape);
        self.decode(ctx, args, (plan, plan_shape), num_heads)?;
        if plan_shape.max_tiles == 0 {
            return Ok(());
        }
        let tiles = address(plan) + 4 * plan_shape.tiles().start as u64;
        let params = PrefillParams { tensors: tensors_of(args), tiles, shape };
        self.prefill(ctx, args, params, plan_shape.max_tiles)
    }

    fn prefill(
        &self,
        ctx: &mut StepCtx,
        args: &AttentionArgs<'_>,
        params: PrefillParams,
        max_tiles: usize,
    ) -> Result<()> {
        let num_heads = (params.shape.num_kv_heads * params.shape.group) as usize;
        match &self.prefill {
            Prefill::Portable(loaded) => {
                let grid = loaded.grid([num_heads, max_tiles]);
                // SAFETY: the struct mirrors the kernel's; the tensors were checked against each other; rows, tokens
                // and positions in the plan are those of the step, whose block tables hold a block for every key seen.
                unsafe { launch(ctx, &loaded.kernel, grid, &params) }
            }
            Prefill::Wgmma(loaded) => {
                let num_blocks = (self.device.num_sms() as usize).min(num_heads * max_tiles);
                let map = TensorMap::of(&self.device, args.kv)?;
                let params = WideParams { map, prefill: params, max_tiles: max_tiles as i32 };
                // SAFETY: as above; the map describes the layer's cache.
                unsafe { launch(ctx, &loaded.kernel, loaded.grid([num_blocks, 1]), &params) }
            }
        }
    }

    fn decode(
        &self,
        ctx: &mut StepCtx,
        args: &AttentionArgs<'_>,
        (plan, plan_shape): (&Tensor, PlanShape),
        num_heads: usize,
    ) -> Result<()> {
        let num_rows = plan_shape.max_parts * num_heads * TILE_HEADS;
        let parts = ctx.alloc(DType::F32, &[num_rows, self.shape().head_dim])?;
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
        let decode = match plan_shape.cut {
            Cut::Clusters => self.decode_cluster.as_ref().expect("planned for a device with clusters"),
            Cut::Uncut | Cut::Balanced => &self.decode,
        };
        let grid = decode.grid([plan_shape.num_runs, num_heads]);
        // SAFETY: as in `forward`; the parts are as many as the plan of this shape may make.
        unsafe { launch(ctx, &decode.kernel, grid, &params) }
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
        scale_log2: args.scale * args.kv.scales.k * std::f32::consts::LOG2_E,
        value_scale: args.kv.scales.v,
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
