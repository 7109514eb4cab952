//! Forms across parts. Whether the inner backend takes one is known only when it runs, so the queued operation holds
//! the plain composition too, and the call never declines.

use std::sync::Arc;

use super::enqueue::Enqueue;
use super::on_inner::OnInner;
use crate::parts::{add_rms_norm_into, silu_mul_into};
use crate::{
    Activation, AddRmsNorm, DeviceId, Dispatch, FusedKernels, Kernels, Limits, Part, Result, RopeWriteKv,
    StepCtx, Tensor, rope_write_kv,
};

pub(super) struct DeferredFused {
    part: Arc<dyn FusedKernels>,
    inner: Kernels,
    device: DeviceId,
}

impl DeferredFused {
    pub(super) fn new(part: Arc<dyn FusedKernels>, inner: Kernels, device: DeviceId) -> Arc<Self> {
        Arc::new(Self { part, inner, device })
    }
}

impl Part for DeferredFused {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.part.scratch_bytes(limits)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        self.part.dispatch()
    }
}

impl FusedKernels for DeferredFused {
    fn add_rms_norm(&self, ctx: &mut StepCtx, args: &AddRmsNorm<'_>, out: &Activation) -> Result<bool> {
        let enqueue = Enqueue::new(ctx)
            .reads(args.delta)
            .reads([args.residual, args.weight])
            .writes([&out.x])
            .writes(&out.prepared);
        let (delta, residual) = (args.delta.map(Tensor::on_inner), args.residual.on_inner());
        let (weight, eps, out, inner) =
            (args.weight.on_inner(), args.eps, out.on_inner(), self.inner.clone());
        enqueue.run(move |ctx| {
            let args = AddRmsNorm { delta: delta.as_ref(), residual: &residual, weight: &weight, eps };
            add_rms_norm_into(&inner, ctx, &args, &out)
        })?;
        Ok(true)
    }

    fn rope_write_kv(&self, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<bool> {
        let enqueue = Enqueue::new(ctx).reads([args.q, args.k, args.v]);
        let (q, k, v) = (args.q.on_inner(), args.k.on_inner(), args.v.on_inner());
        let (table, kv, step) = (args.table.on_inner(), args.kv.on_inner(), args.step.on_inner());
        let inner = self.inner.clone();
        enqueue.run(move |ctx| {
            let (q, k, v, table, kv, step) = (&q, &k, &v, &table, &kv, &step);
            rope_write_kv(&inner, ctx, &RopeWriteKv { q, k, v, table, kv, step })
        })?;
        Ok(true)
    }

    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Activation) -> Result<bool> {
        let enqueue = Enqueue::new(ctx).reads([gate_up]).writes([&out.x]).writes(&out.prepared);
        let (gate_up, out, inner) = (gate_up.on_inner(), out.on_inner(), self.inner.clone());
        enqueue.run(move |ctx| silu_mul_into(&inner, ctx, &gate_up, &out))?;
        Ok(true)
    }
}
