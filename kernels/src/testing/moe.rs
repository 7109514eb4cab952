//! Mixture of experts.

use std::sync::Arc;

use super::device::DeferredDevice;
use super::enqueue::Enqueue;
use super::on_inner::OnInner;
use crate::{
    Activation, Device, DeviceId, Dispatch, ExpertShape, ExpertWeights, Experts, Gate, Limits, MoeKernels,
    Part, Result, RouteWeights, Routes, StepCtx, Tensor,
};

pub(super) struct DeferredMoe {
    pub(super) part: Arc<dyn MoeKernels>,
    pub(super) device: Arc<DeferredDevice>,
}

impl Part for DeferredMoe {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.part.scratch_bytes(limits)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        self.part.dispatch()
    }
}

impl MoeKernels for DeferredMoe {
    /// Runs in the call, which is outside of any step.
    fn pack(&self, experts: &[ExpertWeights<'_>], gate: Gate) -> Result<Box<dyn Experts>> {
        self.device.check_not_in_step("pack a weight")?;
        Ok(Box::new(DeferredExperts(Arc::from(self.part.pack(experts, gate)?))))
    }

    fn experts_bytes(&self, shape: &ExpertShape, num_tokens: usize) -> usize {
        self.part.experts_bytes(shape, num_tokens)
    }

    fn route(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        weights: RouteWeights,
        routes: &Routes,
    ) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([logits]).writes([&routes.experts, &routes.weights]);
        let (logits, routes, part) = (logits.on_inner(), routes.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.route(ctx, &logits, weights, &routes))
    }

    fn add_gated(&self, ctx: &mut StepCtx, gate: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([gate, x, out]);
        let (gate, x, out, part) = (gate.on_inner(), x.on_inner(), out.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.add_gated(ctx, &gate, &x, &out))
    }
}

struct DeferredExperts(Arc<dyn Experts>);

impl Experts for DeferredExperts {
    fn num_bytes(&self) -> usize {
        self.0.num_bytes()
    }

    fn kernel(&self) -> String {
        self.0.kernel()
    }

    fn forward(&self, ctx: &mut StepCtx, x: &Activation, routes: &Routes, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx)
            .reads([&x.x, &routes.experts, &routes.weights])
            .reads(&x.prepared)
            .writes([out]);
        let (x, routes, out, experts) = (x.on_inner(), routes.on_inner(), out.on_inner(), self.0.clone());
        enqueue.run(move |ctx| experts.forward(ctx, &x, &routes, &out))
    }
}
