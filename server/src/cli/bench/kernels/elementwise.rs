//! Normalization, gating, rotation.

use quire_kernels::{
    AddRmsNorm, DType, Kernels, KvLayer, Result as KernelResult, RopeStyle, RopeTable, RopeWriteKv, StepCtx,
    StepView, Tensor, add_rms_norm, rope_write_kv, silu_mul,
};

use super::attention::Cache;
use super::report::Case;
use super::timer::{Timing, Work};
use super::{KernelBench, num_rotated, random};
use crate::error::Result;

/// Room for what is prepared of an output, beside the output.
const SCRATCH_BYTES: usize = 1 << 12;

/// Sums grow with every call: what is added is small.
const DELTA: f32 = 1e-3;

pub(super) fn norm(bench: &KernelBench<'_>) -> Result<()> {
    let columns = bench.shapes.hidden_size;
    bench.args.rows.iter().try_for_each(|&rows| {
        // Delta is read, the output written; the residual stream is read and written.
        let plain = case(bench, "add_rms_norm", rows, 2 * columns);
        let stream = rows * 2 * columns * bench.kernels.device().info().residual_dtype.block_bytes();
        let case = Case { bytes: plain.bytes + stream, ..plain };
        bench.measure(&case, 2 * case.bytes, || time_norm(bench, rows))
    })
}

pub(super) fn activation(bench: &KernelBench<'_>) -> Result<()> {
    let features = bench.shapes.intermediate_size;
    bench.args.rows.iter().try_for_each(|&rows| {
        let case = case(bench, "silu_mul", rows, 3 * features);
        bench.measure(&case, 2 * case.bytes, || time_gate(bench, rows))
    })
}

pub(super) fn rope(bench: &KernelBench<'_>) -> Result<()> {
    let (q, kv) = (bench.shapes.q_size(), bench.shapes.kv_size());
    bench.args.rows.iter().try_for_each(|&rows| {
        // Queries and keys are read and written in place, values read, keys and values written to the cache.
        let plain = case(bench, "rope_write_kv", rows, 2 * q + 3 * kv);
        let cached = rows * 2 * kv * bench.kv_dtype().block_bytes();
        let plain_bytes = plain.bytes;
        let case = Case { bytes: plain.bytes + cached, ..plain };
        // Each row has a block of its own.
        let num_bytes = 2 * plain_bytes + bench.args.block_size * cached;
        bench.measure(&case, num_bytes, || time_rope(bench, rows))
    })
}

/// A case that moves so many elements of activations a row.
fn case(bench: &KernelBench<'_>, op: &'static str, rows: usize, elements: usize) -> Case {
    let dtype = bench.activation_dtype();
    Case {
        op,
        case: format!("{rows} rows"),
        dtype: dtype.to_string(),
        rows,
        bytes: rows * elements * dtype.block_bytes(),
        ..Case::default()
    }
}

struct Norm<'a> {
    kernels: &'a Kernels,
    deltas: Vec<Tensor>,
    residuals: Vec<Tensor>,
    weight: Tensor,
}

impl Work for Norm<'_> {
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> KernelResult<()> {
        let turn = turn % self.deltas.len();
        let (delta, residual) = (Some(&self.deltas[turn]), &self.residuals[turn]);
        let args = AddRmsNorm { delta, residual, weight: &self.weight, eps: 1e-6 };
        add_rms_norm(self.kernels, ctx, &args).map(drop)
    }
}

fn time_norm(bench: &KernelBench<'_>, rows: usize) -> KernelResult<Timing> {
    let (kernels, dtype, columns) = (&bench.kernels, bench.activation_dtype(), bench.shapes.hidden_size);
    let dims = [rows, columns];
    let count = num_rotated(2 * rows * columns * dtype.block_bytes());
    let deltas =
        (0..count).map(|_| random::tensor(kernels, dtype, &dims, DELTA)).collect::<KernelResult<_>>()?;
    let residual_dtype = kernels.device().info().residual_dtype;
    let residuals = random::tensors(kernels, count, residual_dtype, &dims)?;
    let weight = random::tensor(kernels, DType::F32, &[columns], 1.0)?;
    let mut ctx = bench.ctx(rows, rows, output_bytes(bench, rows, columns))?;
    bench.timer.time(&mut ctx, &Norm { kernels, deltas, residuals, weight })
}

struct Gate<'a> {
    kernels: &'a Kernels,
    inputs: Vec<Tensor>,
}

impl Work for Gate<'_> {
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> KernelResult<()> {
        silu_mul(self.kernels, ctx, &self.inputs[turn % self.inputs.len()]).map(drop)
    }
}

fn time_gate(bench: &KernelBench<'_>, rows: usize) -> KernelResult<Timing> {
    let (kernels, dtype, features) =
        (&bench.kernels, bench.activation_dtype(), bench.shapes.intermediate_size);
    let count = num_rotated(2 * rows * features * dtype.block_bytes());
    let inputs = random::tensors(kernels, count, dtype, &[rows, 2 * features])?;
    let mut ctx = bench.ctx(rows, rows, output_bytes(bench, rows, features))?;
    bench.timer.time(&mut ctx, &Gate { kernels, inputs })
}

/// An output, and what is prepared of it.
fn output_bytes(bench: &KernelBench<'_>, rows: usize, columns: usize) -> usize {
    let plain = rows * columns * bench.activation_dtype().block_bytes();
    plain + bench.kernels.linear().activation_bytes(rows, columns) + SCRATCH_BYTES
}

struct Rope<'a> {
    kernels: &'a Kernels,
    /// Queries, keys and values of a token side by side, as the model has them.
    inputs: Vec<Tensor>,
    ends: [usize; 3],
    table: RopeTable,
    kv: &'a KvLayer,
    step: &'a StepView,
}

impl Work for Rope<'_> {
    fn call(&self, ctx: &mut StepCtx, turn: usize) -> KernelResult<()> {
        let (qkv, [q_end, k_end, v_end]) = (&self.inputs[turn % self.inputs.len()], self.ends);
        let (q, k, v) = (qkv.columns(0, q_end), qkv.columns(q_end, k_end), qkv.columns(k_end, v_end));
        let (table, kv, step) = (&self.table, self.kv, self.step);
        rope_write_kv(self.kernels, ctx, &RopeWriteKv { q: &q, k: &k, v: &v, table, kv, step })
    }
}

fn time_rope(bench: &KernelBench<'_>, rows: usize) -> KernelResult<Timing> {
    const MAX_POSITIONS: usize = 4096;
    let (kernels, shapes, dtype) = (&bench.kernels, &bench.shapes, bench.activation_dtype());
    let (q, kv) = (shapes.q_size(), shapes.kv_size());
    let mut ctx = bench.ctx(rows, rows, 0)?;
    // Each row a sequence of one token, which is the last of its first block.
    let cache = Cache::new(bench, &mut ctx, &vec![(1, bench.args.block_size); rows], 1)?;
    let count = num_rotated(rows * (q + 2 * kv) * dtype.block_bytes());
    let inputs = random::tensors(kernels, count, dtype, &[rows, q + 2 * kv])?;
    let cos_sin = random::tensor(kernels, DType::F32, &[MAX_POSITIONS, shapes.head_dim], 0.7)?;
    let table = RopeTable { cos_sin, style: RopeStyle::Halves };
    let work = Rope {
        kernels,
        inputs,
        ends: [q, q + kv, q + 2 * kv],
        table,
        kv: &cache.layers[0],
        step: &cache.view,
    };
    bench.timer.time(&mut ctx, &work)
}
