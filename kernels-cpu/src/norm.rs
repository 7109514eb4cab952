//! Root-mean-square normalization, residual addition and the gathering of rows.

use quire_kernels::{Device as _, DeviceId, Dispatch, NormKernels, Part, Result, StepCtx, Tensor};

use crate::Isa;
use crate::device::CpuDevice;
use crate::lanes::{self, LANES, Lanewise, Program, Simd};

/// Elements that are worth a thread's while in a pass over memory: a microsecond or two.
const GRAIN_ELEMENTS: usize = 16 * 1024;

/// Rows of so many columns that are worth a thread's while.
pub(crate) fn grain_rows(columns: usize) -> usize {
    (GRAIN_ELEMENTS / columns.max(1)).max(1)
}

/// The norm part.
#[derive(Debug)]
pub(crate) struct CpuNorm {
    device: CpuDevice,
}

impl CpuNorm {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device }
    }
}

impl Part for CpuNorm {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let reason = "one order of summation, on every instruction set";
        vec![Dispatch::new("norm", format!("rms {}", self.device.isa()), reason)]
    }
}

impl NormKernels for CpuNorm {
    fn rms_norm(&self, _: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        let isa = self.device.isa();
        let grain = grain_rows(x.num_columns());
        let mut session = self.device.session();
        if x.overlaps(out) {
            let (pool, [weight], [out]) = session.open([weight], [out]);
            let weight = weight.slice::<f32>();
            out.rows::<f32>().for_each(pool, grain, |_, row| rms_norm_in_place(isa, row, weight, eps));
        } else {
            let (pool, [x, weight], [out]) = session.open([x, weight], [out]);
            let (x, weight) = (x.rows::<f32>(), weight.slice::<f32>());
            out.rows::<f32>().for_each(pool, grain, |i, out| rms_norm(isa, x.row(i), weight, eps, out));
        }
        Ok(())
    }

    fn add(&self, _: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()> {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [x], [residual]) = session.open([x], [residual]);
        let x = x.rows::<f32>();
        residual.rows::<f32>().for_each(pool, grain_rows(x.columns()), |i, row| add(isa, x.row(i), row));
        Ok(())
    }

    fn gather_rows(&self, _: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()> {
        let mut session = self.device.session();
        let (pool, [x, idx], [out]) = session.open([x, idx], [out]);
        let (x, idx) = (x.rows::<f32>(), idx.slice::<i32>());
        out.rows::<f32>().for_each(pool, grain_rows(x.columns()), |i, out| {
            let row = usize::try_from(idx[i]).expect("the index of a gathered row is not negative");
            out.copy_from_slice(x.row(row));
        });
        Ok(())
    }
}

/// `out = x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    out.copy_from_slice(x);
    rms_norm_in_place(isa, out, weight, eps);
}

/// `x = x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "a norm has a weight for each column");
    lanes::run(isa, RmsNorm { x, weight, eps });
}

/// `residual += x`.
pub(crate) fn add(isa: Isa, x: &[f32], residual: &mut [f32]) {
    assert_eq!(x.len(), residual.len(), "rows are added to rows of their length");
    lanes::run(isa, Add { x, residual });
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Program for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inverse = inverse_rms(s, self.x, self.eps);
        lanes::update(s, self.x, self.weight, ScaleBy(inverse));
    }
}

/// `1 / sqrt(mean(x²) + eps)`; NaN where the squares overflow, since 0 would make a row of zeros of what the model did
/// not compute.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mean_square = sum_of_squares(s, x) / x.len() as f32 + eps;
    if mean_square < f32::INFINITY { 1.0 / mean_square.sqrt() } else { f32::NAN }
}

/// `x · factor · weight`.
#[derive(Clone, Copy)]
pub(crate) struct ScaleBy(pub(crate) f32);

impl Lanewise for ScaleBy {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V, weight: S::V) -> S::V {
        s.mul(s.mul(x, s.splat(self.0)), weight)
    }
}

/// The sum of squares: four vectors of partial sums, each of every fourth vector of the row.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.zero(); 4];
    let (quads, rest) = x.as_chunks::<{ 4 * LANES }>();
    for quad in quads {
        for (sum, v) in sums.iter_mut().zip(quad.as_chunks::<LANES>().0) {
            let v = s.load(v);
            *sum = s.fma(v, v, *sum);
        }
    }
    for (sum, v) in sums.iter_mut().zip(rest.chunks(LANES)) {
        let v = s.load_head(v, 0.0);
        *sum = s.fma(v, v, *sum);
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

struct Add<'a> {
    x: &'a [f32],
    residual: &'a mut [f32],
}

impl Program for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        lanes::update(s, self.residual, self.x, Sum);
    }
}

/// `a + b`.
#[derive(Clone, Copy)]
pub(crate) struct Sum;

impl Lanewise for Sum {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.add(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, bits, noise};

    #[test]
    fn a_normalized_row_is_close_to_the_formula_and_the_same_on_every_isa() {
        for columns in [1, 15, 16, 63, 64, 65, 100, 576, 2047] {
            let (x, weight) = (noise(columns, 1), noise(columns, 2));
            let mean: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / columns as f64;
            let want = |i: usize| f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
            let rows: Vec<_> = Isa::available()
                .into_iter()
                .map(|isa| {
                    let mut out = vec![f32::NAN; columns];
                    rms_norm(isa, &x, &weight, 1e-5, &mut out);
                    out
                })
                .collect();
            assert_close(&rows[0], want, 1e-6);
            assert!(rows.iter().all(|row| bits(row) == bits(&rows[0])), "{columns} columns");
        }
    }

    #[test]
    fn rows_are_added() {
        for isa in Isa::available() {
            let (x, y) = (noise(77, 3), noise(77, 4));
            let mut sum = y.clone();
            add(isa, &x, &mut sum);
            assert!(sum.iter().zip(x.iter().zip(&y)).all(|(s, (x, y))| *s == y + x));
        }
    }
}
