//! The free functions that model code calls: the fused forms of a backend, or the plain compositions.

use super::bench::{Bench, Matrix, Placement, tolerance, widen};
use super::elementwise::rope_table;
use super::linear::{TestLayer, TestWeight};
use super::report::At;
use crate::{
    Activation, AddRmsNorm, AttentionArgs, DType, KvGroupSpec, KvKind, KvLayer, KvScales, Limits, Result,
    RopeStyle, RopeWriteKv, ShapeKey, StepBuffers, StepCtx, StepRows, StepView, Tensor, add_rms_norm, math,
    rope_write_kv, silu_mul, write_head,
};

const EPS: f32 = 1e-6;

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    for dtype in [DType::F32, DType::Q4_1, DType::Q6K] {
        let weight = TestWeight::random(bench, dtype, [48, 512], false);
        let layer = match TestLayer::pack(bench, &[weight]) {
            Ok(layer) => layer,
            Err(error) => {
                bench.report.error(At { op: "fused", case: "pack" }, &error);
                continue;
            }
        };
        for num_tokens in [0, 1, 4, 33] {
            check_add_rms_norm(bench, &layer, num_tokens, true)?;
            check_add_rms_norm(bench, &layer, num_tokens, false)?;
            check_silu_mul(bench, &layer, num_tokens)?;
        }
    }
    for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
        check_rope_write_kv(bench, style)?;
    }
    Ok(())
}

fn check_add_rms_norm(
    bench: &mut Bench<'_>,
    layer: &TestLayer,
    num_tokens: usize,
    has_delta: bool,
) -> Result<()> {
    let columns = layer.layer.in_features();
    let dims = [num_tokens, columns];
    let (residual, delta) = (bench.normals(num_tokens * columns), bench.normals(num_tokens * columns));
    let weight: Vec<f32> = (0..columns).map(|_| 1.0 + 0.3 * bench.rng.normal() as f32).collect();
    let device_weight = bench.f32s(&[columns], &weight)?;
    let device_residual = bench.matrix_of(bench.residual(), dims, Placement::Whole, &residual)?;
    let device_delta = bench.matrix(dims, Placement::Slice, &delta)?;
    let sums: Vec<f64> = widen(&residual)
        .iter()
        .zip(&delta)
        .map(|(r, d)| r + if has_delta { f64::from(*d) } else { 0.0 })
        .collect();
    let normed: Vec<f64> =
        sums.chunks(columns).flat_map(|row| math::rms_norm(row, &widen(&weight), f64::from(EPS))).collect();

    let case = format!("add_rms_norm of {num_tokens} tokens, delta {has_delta}, {}", layer.layer.kernel());
    let kernels = bench.kernels;
    let args = AddRmsNorm {
        delta: has_delta.then_some(&device_delta.view),
        residual: &device_residual.view,
        weight: &device_weight,
        eps: EPS,
    };
    check_through_layer(bench, &case, layer, &normed, |ctx| add_rms_norm(kernels, ctx, &args))?;
    let dtype = bench.residual();
    let at = At { op: "fused.residual", case: &case };
    bench.check(at, &device_residual, &sums, |i| tolerance(dtype, sums[i]))?;
    Ok(())
}

fn check_silu_mul(bench: &mut Bench<'_>, layer: &TestLayer, num_tokens: usize) -> Result<()> {
    let columns = 2 * layer.layer.in_features();
    let values = bench.normals(num_tokens * columns);
    let gate_up: Matrix = bench.matrix([num_tokens, columns], Placement::Whole, &values)?;
    let gated: Vec<f64> = widen(&values).chunks(columns).flat_map(math::silu_mul).collect();
    let case = format!("silu_mul of {num_tokens} tokens, {}", layer.layer.kernel());
    let kernels = bench.kernels;
    check_through_layer(bench, &case, layer, &gated, |ctx| silu_mul(kernels, ctx, &gate_up.view))
}

/// A prepared activation can only be seen through a layer that reads it.
fn check_through_layer(
    bench: &mut Bench<'_>,
    case: &str,
    layer: &TestLayer,
    x: &[f64],
    produce: impl FnOnce(&mut StepCtx) -> Result<Activation>,
) -> Result<()> {
    let (columns, rows) = (layer.layer.in_features(), layer.layer.out_features());
    let activation = bench.activation();
    let expected = x.chunks(columns).flat_map(|x| layer.expect(x, activation, DType::F32));
    let (outputs, bounds): (Vec<f64>, Vec<f64>) = expected.unzip();
    let out = bench.poisoned_f32([x.len() / columns, rows], Placement::Whole)?;
    bench.ctx.step(|ctx| {
        let x = produce(ctx)?;
        layer.layer.forward(ctx, &x, &out.view)
    })?;
    // The input itself was rounded once: twice the bound of an exact one.
    bench.check(At { op: "fused.activation", case }, &out, &outputs, |i| 2.0 * bounds[i])?;
    Ok(())
}

/// Rotates one sequence of five tokens, then looks at queries and keys; the cache is looked at by attention.
fn check_rope_write_kv(bench: &mut Bench<'_>, style: RopeStyle) -> Result<()> {
    const TOKENS: usize = 5;
    let (head_dim, heads, kv_heads, block_size) = (64, 4, 2, 16);
    let limits = Limits { max_num_batched_tokens: TOKENS, max_num_seqs: 1, max_model_len: 32, block_size };
    let spec = KvGroupSpec {
        layers: vec![0],
        kind: KvKind::Full,
        num_kv_heads: kv_heads,
        head_dim,
        dtype: bench.activation(),
    };
    let layout = bench.kernels.attention().kv_layout(&spec, block_size)?;
    let blocks = bench.tensor(DType::U8, &[2, layout.block_bytes], &vec![0xff; 2 * layout.block_bytes])?;
    let kv = KvLayer { blocks, layout, scales: KvScales::ONE };
    let (table, cos_sin) = rope_table(bench, head_dim, 64, style)?;
    let buffers = StepBuffers::new(bench.kernels.device().as_ref(), &limits)?;
    let positions = [0, 1, 2, 3, 4];
    write_head(&mut bench.ctx, &buffers.positions, &positions)?;
    write_head(&mut bench.ctx, &buffers.slot_mapping, &positions.map(|p| p + block_size as i32))?;
    write_head(&mut bench.ctx, &buffers.query_start, &[0, TOKENS as i32])?;
    write_head(&mut bench.ctx, &buffers.seq_lens, &[TOKENS as i32])?;
    bench.ctx.write(&buffers.block_tables, &[1, 1])?;
    let view =
        buffers.view(ShapeKey { num_tokens: TOKENS, num_rows: 1, max_query_len: TOKENS, num_logits: 0 });

    let rotated = |values: &[f32]| {
        let mut rotated = widen(values);
        for (token, row) in rotated.chunks_mut(values.len() / TOKENS).enumerate() {
            for head in row.chunks_mut(head_dim) {
                math::rotate(head, &cos_sin[token * head_dim..][..head_dim], |i| style.pair(i, head_dim));
            }
        }
        rotated
    };
    let mut random = |heads: usize| -> Result<(Matrix, Vec<f64>, Vec<f32>)> {
        let values = bench.normals(TOKENS * heads * head_dim);
        let matrix = bench.matrix([TOKENS, heads * head_dim], Placement::Slice, &values)?;
        Ok((matrix, rotated(&values), values))
    };
    let (q, rotated_q, _) = random(heads)?;
    let (k, rotated_k, _) = random(kv_heads)?;
    let (v, _, values) = random(kv_heads)?;
    let kernels = bench.kernels;
    let args = RopeWriteKv { q: &q.view, k: &k.view, v: &v.view, table: &table, kv: &kv, step: &view };
    bench.ctx.step(|ctx| rope_write_kv(kernels, ctx, &args))?;
    let (dtype, case) = (bench.activation(), format!("rope_write_kv {style:?}"));
    let at = At { op: "fused.rope_write_kv", case: &case };
    bench.check(at, &q, &rotated_q, |i| tolerance(dtype, rotated_q[i]))?;

    let out = bench.poisoned([TOKENS, heads * head_dim], Placement::Whole)?;
    let rows = StepRows { query_start: vec![0, TOKENS as i32], seq_lens: vec![TOKENS as i32] };
    attend_to_cache(bench, &rows, &q.view, &kv, &view, &out.view)?;
    let expected = attended(&rotated_q, &rotated_k, &widen(&values), head_dim, [heads, kv_heads]);
    let bound = |i: usize| 16.0 * tolerance(dtype, expected[i]);
    bench.check(at, &out, &expected, bound)?;
    Ok(())
}

/// Attention over what is in the cache.
fn attend_to_cache(
    bench: &mut Bench<'_>,
    rows: &StepRows,
    q: &Tensor,
    kv: &KvLayer,
    step: &StepView,
    out: &Tensor,
) -> Result<()> {
    let attention = bench.kernels.attention();
    bench.ctx.scope(|ctx| {
        let plan = attention.plan(ctx, step.key, rows, &kv.layout)?;
        let args =
            AttentionArgs { q, kv, step, plan: &plan, scale: 0.125, window: None, soft_cap: None, out };
        ctx.step(|ctx| attention.forward(ctx, &args))
    })
}

fn attended(q: &[f64], k: &[f64], v: &[f64], head_dim: usize, [heads, kv_heads]: [usize; 2]) -> Vec<f64> {
    let mut out = Vec::new();
    for (i, query) in q.chunks(head_dim).enumerate() {
        let (token, kv_head) = (i / heads, i % heads / (heads / kv_heads));
        let of_head = |cached: &[f64]| -> Vec<f64> {
            (0..=token)
                .flat_map(|t| &cached[(t * kv_heads + kv_head) * head_dim..][..head_dim])
                .copied()
                .collect()
        };
        out.extend(math::attend(query, &of_head(k), &of_head(v), math::Scores::new(0.125, None)));
    }
    out
}
