//! Mixture of experts, one token after the other.

use super::linear::PlainLinear;
use super::memory::{load, load_i32, map_rows, store, store_i32};
use super::plain_part;
use crate::math::moe::{route, sigmoid};
use crate::{
    Activation, DeviceId, ExpertShape, ExpertWeights, Experts, Gate, Linear as _, MoeKernels, Result,
    RouteWeights, Routes, StepCtx, Tensor, math,
};

pub(super) struct Moe(pub(super) DeviceId);

plain_part!(Moe, "moe");

impl MoeKernels for Moe {
    fn pack(&self, experts: &[ExpertWeights<'_>], gate: Gate) -> Result<Box<dyn Experts>> {
        let pack = |expert: &ExpertWeights<'_>| {
            Ok((PlainLinear::pack(&expert.gate_up)?, PlainLinear::pack(std::slice::from_ref(&expert.down))?))
        };
        let experts = experts.iter().map(pack).collect::<Result<_>>()?;
        Ok(Box::new(PlainExperts { experts, gate }))
    }

    fn experts_bytes(&self, _: &ExpertShape, _: usize) -> usize {
        0
    }

    fn route(&self, _: &mut StepCtx, logits: &Tensor, weights: RouteWeights, routes: &Routes) -> Result<()> {
        let top_k = routes.experts.num_columns();
        let values = load(logits);
        let rows = values.chunks(logits.num_columns().max(1)).flat_map(|row| route(row, top_k, weights));
        let (experts, weights): (Vec<i32>, Vec<f64>) =
            rows.map(|(expert, weight)| (expert as i32, weight)).unzip();
        store_i32(&routes.experts, &experts);
        store(&routes.weights, &weights);
        Ok(())
    }

    fn add_gated(&self, _: &mut StepCtx, gate: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
        let (gates, added) = (load(gate), load(x));
        let columns = x.num_columns();
        map_rows(out, out, |token, row| {
            let x = &added[token * columns..(token + 1) * columns];
            row.iter().zip(x).map(|(out, x)| out + sigmoid(gates[token]) * x).collect()
        });
        Ok(())
    }
}

struct PlainExperts {
    /// `gate_up` and `down` of each.
    experts: Vec<(PlainLinear, PlainLinear)>,
    gate: Gate,
}

impl Experts for PlainExperts {
    fn num_bytes(&self) -> usize {
        self.experts.iter().map(|(gate_up, down)| gate_up.num_bytes() + down.num_bytes()).sum()
    }

    fn kernel(&self) -> String {
        "experts f64".to_owned()
    }

    fn forward(&self, _: &mut StepCtx, x: &Activation, routes: &Routes, out: &Tensor) -> Result<()> {
        let (experts, weights) = (load_i32(&routes.experts), load(&routes.weights));
        let top_k = routes.experts.num_columns();
        map_rows(&x.x, out, |token, x| {
            let places = token * top_k..(token + 1) * top_k;
            let mut routes: Vec<_> = experts[places.clone()]
                .iter()
                .zip(&weights[places])
                .map(|(e, w)| (*e as usize, *w))
                .collect();
            routes.sort_by_key(|route| route.0);
            let mut sum = vec![0.0; x.len()];
            for (expert, weight) in routes {
                let (gate_up, down) = &self.experts[expert];
                let y = down.apply(&gated(self.gate, &gate_up.apply(x)));
                sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
            }
            sum
        });
        Ok(())
    }
}

fn gated(gate: Gate, gate_up: &[f64]) -> Vec<f64> {
    match gate {
        Gate::Silu => math::silu_mul(gate_up),
        Gate::GeluTanh => math::gelu_tanh_mul(gate_up),
    }
}
