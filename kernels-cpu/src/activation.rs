//! Gated activations.

use quire_kernels::{
    ActivationKernels, ActivationOp, Device as _, DeviceId, Dispatch, Gate, Part, Result, StepCtx, Tensor,
};

use crate::Isa;
use crate::device::CpuDevice;
use crate::lanes::{self, LANES, Lanewise, Program, Simd};
use crate::norm::grain_rows;

/// The activation part.
#[derive(Debug)]
pub(crate) struct CpuActivation {
    device: CpuDevice,
}

impl CpuActivation {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device }
    }
}

impl Part for CpuActivation {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let reason = "exponential within 1.1 ulp, on every instruction set";
        let kernel = format!("silu_mul, gelu_tanh_mul, scale, soft_cap {}", self.device.isa());
        vec![Dispatch::new("activation", kernel, reason)]
    }
}

impl ActivationKernels for CpuActivation {
    fn silu_mul(&self, _: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        self.gated_mul(Gate::Silu, gate_up, out);
        Ok(())
    }

    fn supports(&self, op: ActivationOp) -> bool {
        matches!(op, ActivationOp::GeluTanhMul | ActivationOp::Scale | ActivationOp::SoftCap)
    }

    fn gelu_tanh_mul(&self, _: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        self.gated_mul(Gate::GeluTanh, gate_up, out);
        Ok(())
    }

    fn scale(&self, _: &mut StepCtx, x: &Tensor, factor: f32) -> Result<()> {
        let mut session = self.device.session();
        let (pool, [], [x]) = session.open([], [x]);
        let mut x = x.rows::<f32>();
        x.for_each(pool, grain_rows(x.columns()), |_, row| row.iter_mut().for_each(|x| *x *= factor));
        Ok(())
    }

    fn soft_cap(&self, _: &mut StepCtx, x: &Tensor, cap: f32) -> Result<()> {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [], [x]) = session.open([], [x]);
        let mut x = x.rows::<f32>();
        x.for_each(pool, grain_rows(x.columns()), |_, x| lanes::run(isa, SoftCap { x, cap }));
        Ok(())
    }
}

impl CpuActivation {
    /// See [`ActivationKernels::silu_mul`]; the caller has made sure that the gate is supported.
    pub(crate) fn gated_mul(&self, gate: Gate, gate_up: &Tensor, out: &Tensor) {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [gate_up], [out]) = session.open([gate_up], [out]);
        let gate_up = gate_up.rows::<f32>();
        let grain = grain_rows(gate_up.columns());
        out.rows::<f32>().for_each(pool, grain, |i, out| gated_mul(isa, gate, gate_up.row(i), out));
    }
}

/// `out = silu(gate) · up`, or another gate's, of a row that holds the gate and then the up projection.
pub(crate) fn gated_mul(isa: Isa, gate: Gate, gate_up: &[f32], out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "a row of gate and up is twice as long as its output");
    match gate {
        Gate::Silu => lanes::run(isa, GatedMul { gate_up, out, gate: Gated }),
        Gate::GeluTanh => lanes::run(isa, GatedMul { gate_up, out, gate: GeluGated }),
        other => unreachable!("{other:?} is no gate that is supported here"),
    }
}

struct GatedMul<'a, G> {
    gate_up: &'a [f32],
    out: &'a mut [f32],
    gate: G,
}

impl<G: Lanewise> Program for GatedMul<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gate, up) = self.gate_up.split_at(self.out.len());
        lanes::map2(s, self.out, gate, up, self.gate);
    }
}

/// `silu(gate) · up`.
#[derive(Clone, Copy)]
pub(crate) struct Gated;

impl Lanewise for Gated {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::V, up: S::V) -> S::V {
        let denominator = s.add(s.splat(1.0), s.exp(s.sub(s.zero(), gate)));
        s.mul(s.div(gate, denominator), up)
    }
}

/// `gelu(gate) · up` with the hyperbolic tangent: `x / 2 · (1 + tanh(y))` is `x / (1 + exp(-2 y))`.
#[derive(Clone, Copy)]
struct GeluGated;

impl Lanewise for GeluGated {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::V, up: S::V) -> S::V {
        /// `-2 sqrt(2 / π)`.
        const SLOPE: f32 = -2.0 * 0.797_884_6;
        let cubed = s.fma(s.mul(gate, gate), s.splat(0.044_715 * SLOPE), s.splat(SLOPE));
        let denominator = s.add(s.splat(1.0), s.exp(s.mul(gate, cubed)));
        s.mul(s.div(gate, denominator), up)
    }
}

/// `cap · tanh(x / cap)`: a tanh is `1 - 2 / (exp(2 x) + 1)`, off by a rounding of 1.
#[inline(always)]
pub(crate) fn soft_cap<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    let denominator = s.add(s.exp(s.mul(x, s.splat(2.0 / cap))), s.splat(1.0));
    s.sub(s.splat(cap), s.div(s.splat(2.0 * cap), denominator))
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Program for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, tail) = self.x.as_chunks_mut::<LANES>();
        for x in x {
            s.store(soft_cap(s, s.load(x), self.cap), x);
        }
        if !tail.is_empty() {
            s.store_head(soft_cap(s, s.load_head(tail, 0.0), self.cap), tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, bits, noise};

    #[test]
    fn silu_is_close_to_the_formula_and_the_same_on_every_isa() {
        for features in [1, 16, 17, 100, 1536] {
            let gate_up: Vec<f32> = noise(2 * features, 5).iter().map(|x| 20.0 * x).collect();
            let (gate, up) = gate_up.split_at(features);
            let want = |i: usize| {
                let gate = f64::from(gate[i]);
                gate / (1.0 + (-gate).exp()) * f64::from(up[i])
            };
            let rows: Vec<_> = Isa::available()
                .into_iter()
                .map(|isa| {
                    let mut out = vec![f32::NAN; features];
                    gated_mul(isa, Gate::Silu, &gate_up, &mut out);
                    out
                })
                .collect();
            assert_close(&rows[0], want, 4e-7);
            assert!(rows.iter().all(|row| bits(row) == bits(&rows[0])), "{features} features");
        }
    }

    #[test]
    fn silu_of_large_gates_is_the_gate_or_nothing() {
        let mut out = [f32::NAN; 3];
        gated_mul(Isa::best(), Gate::Silu, &[200.0, -200.0, f32::MIN, 1.0, 1.0, 1.0], &mut out);
        assert_eq!(out, [200.0, 0.0, 0.0]);
    }

    #[test]
    fn gelu_is_close_to_the_formula_and_the_same_on_every_isa() {
        for features in [1, 17, 100] {
            let gate_up: Vec<f32> = noise(2 * features, 6).iter().map(|x| 8.0 * x).collect();
            let want = |i: usize| {
                let (gate, up) = (f64::from(gate_up[i]), f64::from(gate_up[features + i]));
                let inner = std::f64::consts::FRAC_2_PI.sqrt() * (gate + 0.044715 * gate.powi(3));
                gate / 2.0 * (1.0 + inner.tanh()) * up
            };
            let rows: Vec<_> = Isa::available()
                .into_iter()
                .map(|isa| {
                    let mut out = vec![f32::NAN; features];
                    gated_mul(isa, Gate::GeluTanh, &gate_up, &mut out);
                    out
                })
                .collect();
            assert_close(&rows[0], want, 2e-6);
            assert!(rows.iter().all(|row| bits(row) == bits(&rows[0])), "{features} features");
        }
    }

    #[test]
    fn a_soft_cap_is_close_to_the_formula_and_the_same_on_every_isa() {
        let x: Vec<f32> = noise(77, 8).iter().map(|x| 60.0 * x).chain([1e6, -1e6]).collect();
        let rows: Vec<_> = Isa::available()
            .into_iter()
            .map(|isa| {
                let mut row = x.clone();
                lanes::run(isa, SoftCap { x: &mut row, cap: 30.0 });
                row
            })
            .collect();
        assert_close(&rows[0], |i| 30.0 * (f64::from(x[i]) / 30.0).tanh(), 1e-5);
        assert!(rows.iter().all(|row| bits(row) == bits(&rows[0])));
    }
}
