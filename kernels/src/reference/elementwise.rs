//! Normalization, rotation, gating.

use super::memory::{load, load_i32, map_rows, store};
use super::plain_part;
use crate::{
    ActivationKernels, ActivationOp, DeviceId, NormKernels, Result, RopeKernels, RopeStyle, RopeTable,
    StepCtx, Tensor, math,
};

pub(super) struct Norm(pub(super) DeviceId);
pub(super) struct Rope(pub(super) DeviceId);
pub(super) struct Activation(pub(super) DeviceId);

plain_part!(Norm, "norm");
plain_part!(Rope, "rope");
plain_part!(Activation, "activation");

impl NormKernels for Norm {
    fn rms_norm(&self, _: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        let weight = load(weight);
        map_rows(x, out, |_, row| math::rms_norm(row, &weight, f64::from(eps)));
        Ok(())
    }

    fn add(&self, _: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()> {
        let sums: Vec<f64> = load(x).iter().zip(load(residual)).map(|(a, b)| a + b).collect();
        store(residual, &sums);
        Ok(())
    }

    fn gather_rows(&self, _: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()> {
        for (i, &from) in load_i32(idx).iter().enumerate() {
            store(&out.rows(i, i + 1), &load(&x.rows(from as usize, from as usize + 1)));
        }
        Ok(())
    }
}

impl RopeKernels for Rope {
    fn rope(
        &self,
        _: &mut StepCtx,
        x: &Tensor,
        head_dim: usize,
        positions: &Tensor,
        table: &RopeTable,
    ) -> Result<()> {
        let positions = load_i32(positions);
        map_rows(x, x, |token, row| {
            let position = positions[token] as usize;
            let cos_sin = load(&table.cos_sin.rows(position, position + 1));
            let mut row = row.to_vec();
            for head in row.chunks_mut(head_dim) {
                math::rotate(head, &cos_sin, |i| table.style.pair(i, table.rotary_dim()));
            }
            row
        });
        Ok(())
    }
}

impl RopeStyle {
    /// The two elements of a head that the `i`-th angle turns.
    pub(crate) fn pair(self, i: usize, rotary_dim: usize) -> (usize, usize) {
        match self {
            Self::Halves => (i, i + rotary_dim / 2),
            Self::Interleaved => (2 * i, 2 * i + 1),
        }
    }
}

impl ActivationKernels for Activation {
    fn silu_mul(&self, _: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        map_rows(gate_up, out, |_, row| math::silu_mul(row));
        Ok(())
    }

    fn supports(&self, _: ActivationOp) -> bool {
        true
    }

    fn gelu_tanh_mul(&self, _: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        map_rows(gate_up, out, |_, row| math::gelu_tanh_mul(row));
        Ok(())
    }

    fn scale(&self, _: &mut StepCtx, x: &Tensor, factor: f32) -> Result<()> {
        map_rows(x, x, |_, row| row.iter().map(|x| f64::from(factor) * x).collect());
        Ok(())
    }

    fn soft_cap(&self, _: &mut StepCtx, x: &Tensor, cap: f32) -> Result<()> {
        map_rows(x, x, |_, row| row.iter().map(|&x| math::soft_cap(x, f64::from(cap))).collect());
        Ok(())
    }
}
