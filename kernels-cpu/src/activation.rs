//! Gated activations.

use quire_kernels::{ActivationKernels, Device as _, DeviceId, Dispatch, Part, Result, StepCtx, Tensor};

use crate::Isa;
use crate::device::CpuDevice;
use crate::lanes::{self, Lanewise, Program, Simd};
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
        vec![Dispatch::new("activation", format!("silu_mul {}", self.device.isa()), reason)]
    }
}

impl ActivationKernels for CpuActivation {
    fn silu_mul(&self, _: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, [gate_up], [out]) = session.open([gate_up], [out]);
        let gate_up = gate_up.rows::<f32>();
        let grain = grain_rows(gate_up.columns());
        out.rows::<f32>().for_each(pool, grain, |i, out| silu_mul(isa, gate_up.row(i), out));
        Ok(())
    }
}

/// `out = silu(gate) · up` of a row that holds the gate and then the up projection.
pub(crate) fn silu_mul(isa: Isa, gate_up: &[f32], out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "a row of gate and up is twice as long as its output");
    lanes::run(isa, SiluMul { gate_up, out });
}

struct SiluMul<'a> {
    gate_up: &'a [f32],
    out: &'a mut [f32],
}

impl Program for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gate, up) = self.gate_up.split_at(self.out.len());
        lanes::map2(s, self.out, gate, up, Gated);
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
                    silu_mul(isa, &gate_up, &mut out);
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
        silu_mul(Isa::best(), &[200.0, -200.0, f32::MIN, 1.0, 1.0, 1.0], &mut out);
        assert_eq!(out, [200.0, 0.0, 0.0]);
    }
}
