//! The workbench of the checks: random values, tensors with guarded margins, tolerances.

use super::report::{At, Report};
use crate::{DType, Kernels, Result, StepCtx, Tensor, quant};

/// Scratch of the step context.
const SCRATCH_BYTES: usize = 64 << 20;

/// Elements beside a column slice. A multiple of what kernels align to, as heads and projections are.
const MARGIN: usize = 64;

/// One run of checks on one backend.
pub(super) struct Bench<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) report: &'a mut Report,
    pub(super) ctx: StepCtx,
    pub(super) rng: Rng,
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// By itself.
    Whole,
    /// As a slice of the columns of a wider one.
    Slice,
}

impl Placement {
    pub(super) const BOTH: [Self; 2] = [Self::Whole, Self::Slice];

    fn margin(self) -> usize {
        if self == Self::Whole { 0 } else { MARGIN }
    }
}

/// A matrix with a guard row below and, as a slice, guard columns beside it; all guards hold poison.
pub(super) struct Matrix {
    guarded: Tensor,
    margin: usize,
    /// What kernels are given.
    pub(super) view: Tensor,
}

impl<'a> Bench<'a> {
    pub(super) fn new(kernels: &'a Kernels, report: &'a mut Report, seed: u64) -> Result<Self> {
        Ok(Self { kernels, report, ctx: kernels.step_ctx(SCRATCH_BYTES)?, rng: Rng(seed) })
    }

    /// The dtype of activations.
    pub(super) fn activation(&self) -> DType {
        self.kernels.device().info().activation_dtype
    }

    /// The dtype of the residual stream.
    pub(super) fn residual(&self) -> DType {
        self.kernels.device().info().residual_dtype
    }

    /// `n` normally distributed values that the activation dtype holds exactly.
    pub(super) fn normals(&mut self, n: usize) -> Vec<f32> {
        self.normals_of(self.activation(), n)
    }

    /// `n` normally distributed values that `dtype` holds exactly.
    pub(super) fn normals_of(&mut self, dtype: DType, n: usize) -> Vec<f32> {
        let values: Vec<f32> = (0..n).map(|_| self.rng.normal() as f32).collect();
        round_to(dtype, &values)
    }

    /// A matrix that holds `values`.
    pub(super) fn matrix(
        &mut self,
        dims: [usize; 2],
        placement: Placement,
        values: &[f32],
    ) -> Result<Matrix> {
        self.matrix_of(self.activation(), dims, placement, values)
    }

    /// A matrix of another dtype.
    pub(super) fn matrix_of(
        &mut self,
        dtype: DType,
        [rows, columns]: [usize; 2],
        placement: Placement,
        values: &[f32],
    ) -> Result<Matrix> {
        let margin = placement.margin();
        let width = columns + 2 * margin;
        let mut padded = vec![f32::NAN; (rows + 1) * width];
        for (padded, row) in padded.chunks_mut(width).zip(values.chunks(columns)) {
            padded[margin..margin + columns].copy_from_slice(row);
        }
        let guarded = self.tensor(dtype, &[rows + 1, width], &quant::encode(dtype, &padded))?;
        let view = match placement {
            Placement::Whole => guarded.rows(0, rows),
            Placement::Slice => guarded.rows(0, rows).columns(margin, margin + columns),
        };
        Ok(Matrix { guarded, margin, view })
    }

    /// A matrix for results, full of poison.
    pub(super) fn poisoned(&mut self, dims: [usize; 2], placement: Placement) -> Result<Matrix> {
        self.matrix(dims, placement, &[])
    }

    /// A result in the dtype of the residual stream.
    pub(super) fn poisoned_residual(&mut self, dims: [usize; 2], placement: Placement) -> Result<Matrix> {
        self.matrix_of(self.residual(), dims, placement, &[])
    }

    /// A result of F32.
    pub(super) fn poisoned_f32(&mut self, dims: [usize; 2], placement: Placement) -> Result<Matrix> {
        self.matrix_of(DType::F32, dims, placement, &[])
    }

    pub(super) fn f32s(&mut self, dims: &[usize], values: &[f32]) -> Result<Tensor> {
        self.tensor(DType::F32, dims, bytemuck::cast_slice(values))
    }

    pub(super) fn i32s(&mut self, dims: &[usize], values: &[i32]) -> Result<Tensor> {
        self.tensor(DType::I32, dims, bytemuck::cast_slice(values))
    }

    /// New memory that holds `bytes`.
    pub(super) fn tensor(&mut self, dtype: DType, dims: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let tensor = Tensor::new(self.kernels.device().allocate(bytes.len())?, 0, dtype, dims);
        self.ctx.write(&tensor, bytes)?;
        Ok(tensor)
    }

    /// Reads a matrix; its guards must still hold poison.
    pub(super) fn read(&mut self, at: At<'_>, matrix: &Matrix) -> Result<Vec<f32>> {
        let bytes = self.ctx.read(&matrix.guarded)?.wait()?;
        let all = quant::decode(matrix.guarded.dtype(), &bytes);
        let (rows, columns) = (matrix.view.num_rows(), matrix.view.num_columns());
        let inside = matrix.margin..matrix.margin + columns;
        let mut values = Vec::with_capacity(rows * columns);
        let mut guards_hold = true;
        for (i, row) in all.chunks(matrix.guarded.num_columns()).enumerate() {
            let mut guards = row.iter().enumerate().filter(|(c, _)| i >= rows || !inside.contains(c));
            guards_hold &= guards.all(|(_, v)| v.is_nan());
            if i < rows {
                values.extend(&row[inside.clone()]);
            }
        }
        if !guards_hold {
            self.report.fail(at, "wrote beside its output");
        }
        Ok(values)
    }

    pub(super) fn read_i32(&mut self, tensor: &Tensor) -> Result<Vec<i32>> {
        self.ctx.read(tensor)?.wait_as()
    }

    pub(super) fn read_f32(&mut self, tensor: &Tensor) -> Result<Vec<f32>> {
        self.ctx.read(tensor)?.wait_as()
    }

    /// Compares a matrix with the reference, `tolerance` for each value; returns what it holds.
    pub(super) fn check(
        &mut self,
        at: At<'_>,
        matrix: &Matrix,
        expected: &[f64],
        bound: impl Fn(usize) -> f64,
    ) -> Result<Vec<f32>> {
        let actual = self.read(at, matrix)?;
        self.report.compare(at, &actual, expected, bound);
        Ok(actual)
    }
}

/// How far an element-wise result may be from the reference, in a dtype.
pub(super) fn tolerance(dtype: DType, expected: f64) -> f64 {
    let relative = 2.0 * epsilon(dtype).max(2e-6);
    relative * (1.0 + expected.abs())
}

/// Half the distance of neighbouring values around 1.
pub(super) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-9),
        DType::F8E4M3 => 2f64.powi(-4),
        DType::F8E5M2 => 2f64.powi(-3),
        _ => 2f64.powi(-24),
    }
}

/// The values after a round trip through `dtype`.
pub(super) fn round_to(dtype: DType, values: &[f32]) -> Vec<f32> {
    quant::decode(dtype, &quant::encode(dtype, values))
}

pub(super) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// An integer below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in (0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) * 2f64.powi(-53)
    }

    /// Standard normal, by the method of Box and Muller.
    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// The numbers below `n` in random order (Fisher and Yates).
    pub(super) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
