//! Normalization, rotation, gating, collectives.

use std::sync::Arc;

use super::Deferred;
use super::enqueue::Enqueue;
use super::on_inner::OnInner;
use crate::{
    ActivationKernels, ActivationOp, CommKernels, NormKernels, Result, RopeKernels, RopeTable, StepCtx,
    Tensor,
};

impl NormKernels for Deferred<dyn NormKernels> {
    fn rms_norm(&self, ctx: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([weight]).writes_or_updates(x, out);
        let (x, weight, out) = (x.on_inner(), weight.on_inner(), out.on_inner());
        let part = self.part.clone();
        enqueue.run(move |ctx| part.rms_norm(ctx, &x, &weight, eps, &out))
    }

    fn add(&self, ctx: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([x, residual]);
        let (x, residual, part) = (x.on_inner(), residual.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.add(ctx, &x, &residual))
    }

    fn gather_rows(&self, ctx: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([x, idx]).writes([out]);
        let (x, idx, out) = (x.on_inner(), idx.on_inner(), out.on_inner());
        let part = self.part.clone();
        enqueue.run(move |ctx| part.gather_rows(ctx, &x, &idx, &out))
    }
}

impl RopeKernels for Deferred<dyn RopeKernels> {
    fn rope(
        &self,
        ctx: &mut StepCtx,
        x: &Tensor,
        head_dim: usize,
        positions: &Tensor,
        table: &RopeTable,
    ) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([x, positions, &table.cos_sin]);
        let (x, positions, table) = (x.on_inner(), positions.on_inner(), table.on_inner());
        let part = self.part.clone();
        enqueue.run(move |ctx| part.rope(ctx, &x, head_dim, &positions, &table))
    }
}

impl ActivationKernels for Deferred<dyn ActivationKernels> {
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([gate_up]).writes([out]);
        let (gate_up, out, part) = (gate_up.on_inner(), out.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.silu_mul(ctx, &gate_up, &out))
    }

    fn supports(&self, op: ActivationOp) -> bool {
        self.part.supports(op)
    }

    fn gelu_tanh_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([gate_up]).writes([out]);
        let (gate_up, out, part) = (gate_up.on_inner(), out.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.gelu_tanh_mul(ctx, &gate_up, &out))
    }

    fn scale(&self, ctx: &mut StepCtx, x: &Tensor, factor: f32) -> Result<()> {
        let (inner, part) = (x.on_inner(), self.part.clone());
        Enqueue::new(ctx).reads([x]).run(move |ctx| part.scale(ctx, &inner, factor))
    }

    fn soft_cap(&self, ctx: &mut StepCtx, x: &Tensor, cap: f32) -> Result<()> {
        let (inner, part) = (x.on_inner(), self.part.clone());
        Enqueue::new(ctx).reads([x]).run(move |ctx| part.soft_cap(ctx, &inner, cap))
    }
}

impl CommKernels for Deferred<dyn CommKernels> {
    fn rank(&self) -> usize {
        self.part.rank()
    }

    fn world_size(&self) -> usize {
        self.part.world_size()
    }

    fn all_reduce(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<()> {
        let (inner, part) = (x.on_inner(), Arc::clone(&self.part));
        Enqueue::new(ctx).reads([x]).run(move |ctx| part.all_reduce(ctx, &inner))
    }

    fn all_gather(&self, ctx: &mut StepCtx, x: &Tensor, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([x]).writes([out]);
        let (x, out, part) = (x.on_inner(), out.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.all_gather(ctx, &x, &out))
    }
}
