//! Normalization, rotation, gating.

use super::bench::{Bench, Matrix, Placement, round_to, tolerance, widen};
use super::report::At;
use crate::{ActivationOp, DType, Gate, Result, RopeStyle, RopeTable, StepCtx, Tensor, math};

const ROWS: [usize; 5] = [0, 1, 3, 17, 64];
const COLUMNS: [usize; 6] = [1, 7, 33, 64, 576, 1027];
const EPS: f32 = 1e-5;

pub(super) fn check_norm(bench: &mut Bench<'_>) -> Result<()> {
    for (i, columns) in COLUMNS.into_iter().enumerate() {
        for rows in ROWS {
            check_rms_norm(bench, [rows, columns], Placement::BOTH[i % 2])?;
            check_add(bench, [rows, columns], Placement::BOTH[(i + rows) % 2])?;
        }
        check_gather(bench, columns, Placement::BOTH[i % 2])?;
        check_norm_of_what_overflows(bench, columns)?;
    }
    Ok(())
}

/// Rows whose squares overflow, and those that hold NaN, are normalized right or not at all: a row of zeros would hide
/// them.
fn check_norm_of_what_overflows(bench: &mut Bench<'_>, columns: usize) -> Result<()> {
    let (dtype, kernels) = (bench.residual(), bench.kernels);
    for wrong in [1e30, f32::INFINITY, f32::NAN] {
        let mut values = bench.normals_of(dtype, columns);
        values[columns / 2] = wrong;
        let values = round_to(dtype, &values);
        let expected = math::rms_norm(&widen(&values), &vec![1.0; columns], f64::from(EPS));
        let weight = bench.f32s(&[columns], &vec![1.0; columns])?;
        let x = bench.matrix_of(dtype, [1, columns], Placement::Whole, &values)?;
        let out = bench.matrix([1, columns], Placement::Whole, &vec![0.0; columns])?;
        bench.ctx.step(|ctx| kernels.norm().rms_norm(ctx, &x.view, &weight, EPS, &out.view))?;
        let case = format!("{wrong} among {columns}");
        let at = At { op: "rms_norm.overflow", case: &case };
        let outputs = bench.read(at, &out)?;
        let is_right =
            |i: usize| (f64::from(outputs[i]) - expected[i]).abs() <= 0.01 * (1.0 + expected[i].abs());
        let hidden = (0..columns).filter(|&i| outputs[i].is_finite() && !is_right(i)).count();
        bench.report.equal(at, &[hidden], &[0]);
    }
    Ok(())
}

/// Rows of activations, and of the residual stream.
fn check_rms_norm(bench: &mut Bench<'_>, dims: [usize; 2], placement: Placement) -> Result<()> {
    let (activation, residual) = (bench.activation(), bench.residual());
    check_rms_norm_of(bench, activation, dims, placement)?;
    if residual != activation { check_rms_norm_of(bench, residual, dims, placement) } else { Ok(()) }
}

fn check_rms_norm_of(
    bench: &mut Bench<'_>,
    dtype: DType,
    dims: [usize; 2],
    placement: Placement,
) -> Result<()> {
    let [rows, columns] = dims;
    let values = bench.normals_of(dtype, rows * columns);
    let weight: Vec<f32> = (0..columns).map(|_| 1.0 + 0.3 * bench.rng.normal() as f32).collect();
    let device_weight = bench.f32s(&[columns], &weight)?;
    let weight = widen(&weight);
    let expected: Vec<f64> =
        widen(&values).chunks(columns).flat_map(|x| math::rms_norm(x, &weight, f64::from(EPS))).collect();
    let activation = bench.activation();
    let bound = |i: usize| tolerance(activation, expected[i]);

    let case = format!("{dims:?} {dtype} {placement:?}");
    let at = At { op: "rms_norm", case: &case };
    let (x, out) = (bench.matrix_of(dtype, dims, placement, &values)?, bench.poisoned(dims, placement)?);
    let kernels = bench.kernels;
    let norm = |ctx: &mut StepCtx, x: &Tensor, out: &Tensor| {
        ctx.step(|ctx| kernels.norm().rms_norm(ctx, x, &device_weight, EPS, out))
    };
    norm(&mut bench.ctx, &x.view, &out.view)?;
    let together = bench.check(at, &out, &expected, bound)?;
    if dtype == activation {
        norm(&mut bench.ctx, &x.view, &x.view)?;
        let at = At { op: "rms_norm", case: &format!("in place, {case}") };
        bench.check(at, &x, &expected, bound)?;
    }
    if let Some(row) = values.chunks(columns).last() {
        let x = bench.matrix_of(dtype, [1, columns], placement, row)?;
        let out = bench.poisoned([1, columns], placement)?;
        norm(&mut bench.ctx, &x.view, &out.view)?;
        let at = At { op: "rms_norm", case: &format!("last row alone, {case}") };
        let alone = bench.read(at, &out)?;
        bench.report.same_row(at, &together[(rows - 1) * columns..], &alone);
    }
    Ok(())
}

fn check_add(bench: &mut Bench<'_>, dims: [usize; 2], placement: Placement) -> Result<()> {
    let (n, dtype) = (dims[0] * dims[1], bench.residual());
    let (a, b) = (bench.normals(n), bench.normals_of(dtype, n));
    let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
    let x = bench.matrix(dims, placement, &a)?;
    let residual = bench.matrix_of(dtype, dims, Placement::Whole, &b)?;
    let kernels = bench.kernels;
    bench.ctx.step(|ctx| kernels.norm().add(ctx, &x.view, &residual.view))?;
    let case = format!("{dims:?} {placement:?}");
    bench.check(At { op: "add", case: &case }, &residual, &expected, |i| tolerance(dtype, expected[i]))?;
    Ok(())
}

fn check_gather(bench: &mut Bench<'_>, columns: usize, placement: Placement) -> Result<()> {
    let (activation, residual) = (bench.activation(), bench.residual());
    for (dtype, idx) in [(activation, vec![]), (residual, vec![4]), (activation, vec![2, 0, 2, 8, 5])] {
        let values = bench.normals_of(dtype, 9 * columns);
        let expected: Vec<f64> =
            idx.iter().flat_map(|&i: &i32| widen(&values[i as usize * columns..][..columns])).collect();
        let x = bench.matrix_of(dtype, [9, columns], placement, &values)?;
        let out = bench.matrix_of(dtype, [idx.len(), columns], Placement::Whole, &[])?;
        let device_idx = bench.i32s(&[idx.len()], &idx)?;
        let kernels = bench.kernels;
        bench.ctx.step(|ctx| kernels.norm().gather_rows(ctx, &x.view, &device_idx, &out.view))?;
        let case = format!("{idx:?} of [9, {columns}] {dtype} {placement:?}");
        bench.check(At { op: "gather_rows", case: &case }, &out, &expected, |_| 0.0)?;
    }
    Ok(())
}

pub(super) fn check_rope(bench: &mut Bench<'_>) -> Result<()> {
    let shapes = [(64, 64, 3), (80, 80, 1), (96, 32, 2), (128, 128, 4), (256, 64, 1), (64, 32, 9)];
    for (i, (head_dim, rotary_dim, num_heads)) in shapes.into_iter().enumerate() {
        for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
            for num_tokens in [0, 1, 5, 33] {
                let shape = RopeShape { head_dim, rotary_dim, num_heads, num_tokens, style };
                check_rotation(bench, shape, Placement::BOTH[i % 2])?;
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct RopeShape {
    head_dim: usize,
    rotary_dim: usize,
    num_heads: usize,
    num_tokens: usize,
    style: RopeStyle,
}

fn check_rotation(bench: &mut Bench<'_>, shape: RopeShape, placement: Placement) -> Result<()> {
    const MAX_POSITIONS: usize = 300;
    let (table, cos_sin) = rope_table(bench, shape.rotary_dim, MAX_POSITIONS, shape.style)?;
    let positions: Vec<i32> = (0..shape.num_tokens).map(|_| bench.rng.below(MAX_POSITIONS) as i32).collect();
    let columns = shape.num_heads * shape.head_dim;
    let values = bench.normals(shape.num_tokens * columns);
    let mut expected = widen(&values);
    for (row, &position) in expected.chunks_mut(columns).zip(&positions) {
        let angles = &cos_sin[position as usize * shape.rotary_dim..][..shape.rotary_dim];
        for head in row.chunks_mut(shape.head_dim) {
            math::rotate(head, angles, |i| shape.style.pair(i, shape.rotary_dim));
        }
    }
    let x = bench.matrix([shape.num_tokens, columns], placement, &values)?;
    let device_positions = bench.i32s(&[shape.num_tokens], &positions)?;
    let kernels = bench.kernels;
    bench.ctx.step(|ctx| kernels.rope().rope(ctx, &x.view, shape.head_dim, &device_positions, &table))?;
    let (dtype, case) = (bench.activation(), format!("{shape:?} {placement:?}"));
    bench.check(At { op: "rope", case: &case }, &x, &expected, |i| tolerance(dtype, expected[i]))?;
    Ok(())
}

/// A table with the usual base of 10000, and its values.
pub(super) fn rope_table(
    bench: &mut Bench<'_>,
    rotary_dim: usize,
    max_positions: usize,
    style: RopeStyle,
) -> Result<(RopeTable, Vec<f64>)> {
    let half = rotary_dim / 2;
    let angle = |position: usize, i: usize| position as f64 * 1e4f64.powf(-(i as f64) / half as f64);
    let values: Vec<f32> = (0..max_positions)
        .flat_map(|p| (0..rotary_dim).map(move |i| (p, i)))
        .map(|(p, i)| if i < half { angle(p, i).cos() } else { angle(p, i - half).sin() } as f32)
        .collect();
    let cos_sin = bench.f32s(&[max_positions, rotary_dim], &values)?;
    Ok((RopeTable { cos_sin, style }, widen(&values)))
}

pub(super) fn check_activation(bench: &mut Bench<'_>) -> Result<()> {
    for (i, columns) in COLUMNS.into_iter().enumerate() {
        for rows in ROWS {
            let (dims, placement) = ([rows, columns], Placement::BOTH[i % 2]);
            check_gate(bench, Gate::Silu, dims, placement)?;
            if supports(bench, "gelu_tanh_mul", ActivationOp::GeluTanhMul) {
                check_gate(bench, Gate::GeluTanh, dims, placement)?;
            }
            if supports(bench, "scale", ActivationOp::Scale) {
                check_scale(bench, dims, placement)?;
            }
            if supports(bench, "soft_cap", ActivationOp::SoftCap) {
                check_soft_cap(bench, dims, placement)?;
            }
        }
    }
    Ok(())
}

/// Whether the backend has it; one that has not is listed.
fn supports(bench: &mut Bench<'_>, name: &'static str, op: ActivationOp) -> bool {
    let answer = bench.kernels.activation().require(op);
    if let Err(error) = &answer {
        bench.report.error(At { op: name, case: "all" }, error);
    }
    answer.is_ok()
}

fn check_scale(bench: &mut Bench<'_>, dims: [usize; 2], placement: Placement) -> Result<()> {
    const FACTOR: f32 = 0.22;
    let values = bench.normals(dims[0] * dims[1]);
    let expected: Vec<f64> = widen(&values).iter().map(|x| f64::from(FACTOR) * x).collect();
    let x = bench.matrix(dims, placement, &values)?;
    let kernels = bench.kernels;
    bench.ctx.step(|ctx| kernels.activation().scale(ctx, &x.view, FACTOR))?;
    let (dtype, case) = (bench.activation(), format!("{dims:?} {placement:?}"));
    bench.check(At { op: "scale", case: &case }, &x, &expected, |i| tolerance(dtype, expected[i]))?;
    Ok(())
}

fn check_soft_cap(bench: &mut Bench<'_>, dims: [usize; 2], placement: Placement) -> Result<()> {
    for cap in [0.7, 30.0] {
        let mut values = bench.normals(dims[0] * dims[1]);
        // Where a naive exponential overflows.
        values.iter_mut().zip([1e5, -1e5, 0.0]).for_each(|(value, extreme)| *value = extreme);
        let expected: Vec<f64> =
            widen(&values).iter().map(|&x| math::soft_cap(x, f64::from(cap as f32))).collect();
        let x = bench.matrix_of(DType::F32, dims, placement, &values)?;
        let kernels = bench.kernels;
        bench.ctx.step(|ctx| kernels.activation().soft_cap(ctx, &x.view, cap as f32))?;
        let case = format!("{cap}, {dims:?} {placement:?}");
        // One minus what is nearly one: the error is that of numbers of the cap's size.
        let bound = |_| 4.0 * tolerance(DType::F32, cap);
        bench.check(At { op: "soft_cap", case: &case }, &x, &expected, bound)?;
    }
    Ok(())
}

fn check_gate(
    bench: &mut Bench<'_>,
    gate: Gate,
    [rows, features]: [usize; 2],
    placement: Placement,
) -> Result<()> {
    let formula = |gate_up: &[f64]| match gate {
        Gate::Silu => math::silu_mul(gate_up),
        Gate::GeluTanh => math::gelu_tanh_mul(gate_up),
    };
    let op = if gate == Gate::Silu { "silu_mul" } else { "gelu_tanh_mul" };
    let mut values = bench.normals(rows * 2 * features);
    // Where a naive exponential overflows.
    for (row, extreme) in values.chunks_mut(2 * features).zip([100.0, -100.0, 88.75, -88.75, 0.0]) {
        row[0] = extreme;
    }
    let values = round_to(bench.activation(), &values);
    let expected: Vec<f64> = widen(&values).chunks(2 * features).flat_map(formula).collect();
    let dims = [rows, features];
    let x: Matrix = bench.matrix([rows, 2 * features], placement, &values)?;
    let out = bench.poisoned(dims, placement)?;
    let kernels = bench.kernels;
    bench.ctx.step(|ctx| kernels.activation().gated_mul(ctx, gate, &x.view, &out.view))?;
    let (dtype, case) = (bench.activation(), format!("{dims:?} {placement:?}"));
    bench.check(At { op, case: &case }, &out, &expected, |i| tolerance(dtype, expected[i]))?;
    Ok(())
}
