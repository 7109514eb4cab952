//! Linear layers over weights held as f64.

use super::memory::{load_i32, map_rows, store};
use super::plain_part;
use crate::{Activation, DeviceId, HostWeight, Linear, LinearKernels, Result, StepCtx, Tensor, math};

pub(super) struct Linears(pub(super) DeviceId);

plain_part!(Linears, "linear");

impl LinearKernels for Linears {
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        Ok(Box::new(PlainLinear::pack(weights)?))
    }
}

pub(super) struct PlainLinear {
    columns: usize,
    /// `[out_features, in_features]`.
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl PlainLinear {
    pub(super) fn pack(weights: &[HostWeight<'_>]) -> Result<Self> {
        HostWeight::check_merged(weights)?;
        let mut packed = PlainLinear { columns: weights[0].columns, weight: Vec::new(), bias: Vec::new() };
        for weight in weights {
            packed.weight.extend(weight.decode().into_iter().map(f64::from));
            let bias = weight.bias.map_or_else(|| vec![0.0; weight.rows], <[f32]>::to_vec);
            packed.bias.extend(bias.into_iter().map(f64::from));
        }
        Ok(packed)
    }

    /// The outputs for one token.
    pub(super) fn apply(&self, x: &[f64]) -> Vec<f64> {
        (0..self.bias.len()).map(|i| math::dot(x, self.row(i)) + self.bias[i]).collect()
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.weight[i * self.columns..(i + 1) * self.columns]
    }
}

impl Linear for PlainLinear {
    fn in_features(&self) -> usize {
        self.columns
    }

    fn out_features(&self) -> usize {
        self.bias.len()
    }

    fn num_bytes(&self) -> usize {
        size_of_val(self.weight.as_slice()) + size_of_val(self.bias.as_slice())
    }

    fn kernel(&self) -> String {
        "f64".to_owned()
    }

    fn forward(&self, _: &mut StepCtx, x: &Activation, out: &Tensor) -> Result<()> {
        map_rows(&x.x, out, |_, row| self.apply(row));
        Ok(())
    }

    fn embed(&self, _: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        let rows: Vec<f64> = load_i32(ids).iter().flat_map(|&id| self.row(id as usize)).copied().collect();
        store(out, &rows);
        Ok(())
    }
}
