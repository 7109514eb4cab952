//! Mixture of experts.

use std::sync::Arc;

use super::Traced;
use super::queue::{Op, record};
use crate::{
    Activation, ExpertShape, ExpertWeights, Experts, Gate, MoeKernels, Result, RouteWeights, Routes, StepCtx,
    Tensor,
};

impl MoeKernels for Traced<dyn MoeKernels> {
    fn pack(&self, experts: &[ExpertWeights<'_>], gate: Gate) -> Result<Box<dyn Experts>> {
        let weight = experts.first().map_or_else(String::new, |expert| format!("{} ..", expert.down.name));
        Ok(Box::new(TracedExperts { experts: self.0.pack(experts, gate)?, weight: weight.into() }))
    }

    fn experts_bytes(&self, shape: &ExpertShape, num_tokens: usize) -> usize {
        self.0.experts_bytes(shape, num_tokens)
    }

    fn route(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        weights: RouteWeights,
        routes: &Routes,
    ) -> Result<()> {
        self.0.route(ctx, logits, weights, routes)?;
        record(ctx, Op::new("moe.route"), &[("weights", &routes.weights)])
    }

    fn add_gated(&self, ctx: &mut StepCtx, gate: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
        self.0.add_gated(ctx, gate, x, out)?;
        record(ctx, Op::new("moe.add_gated"), &[("out", out)])
    }
}

struct TracedExperts {
    experts: Box<dyn Experts>,
    weight: Arc<str>,
}

impl Experts for TracedExperts {
    fn num_bytes(&self) -> usize {
        self.experts.num_bytes()
    }

    fn kernel(&self) -> String {
        self.experts.kernel()
    }

    fn forward(&self, ctx: &mut StepCtx, x: &Activation, routes: &Routes, out: &Tensor) -> Result<()> {
        self.experts.forward(ctx, x, routes, out)?;
        let op = Op { weight: Some(&self.weight), ..Op::new("moe.experts") };
        record(ctx, op, &[("out", out)])
    }
}
