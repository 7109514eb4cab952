//! Linear layers.

use std::sync::Arc;

use super::device::DeferredDevice;
use super::enqueue::Enqueue;
use super::on_inner::OnInner;
use crate::{
    Activation, DType, Device, DeviceId, Dispatch, HostWeight, InputPrecision, Limits, Linear, LinearKernels,
    Part, Result, StepCtx, Tensor,
};

pub(super) struct DeferredLinears {
    pub(super) part: Arc<dyn LinearKernels>,
    pub(super) device: Arc<DeferredDevice>,
}

impl Part for DeferredLinears {
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

impl LinearKernels for DeferredLinears {
    /// Runs in the call, which is outside of any step.
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        self.device.check_not_in_step("pack a weight")?;
        Ok(Box::new(DeferredLinear(Arc::from(self.part.pack(weights)?))))
    }

    fn packed_bytes(&self, dtype: DType, num_bytes: usize) -> usize {
        self.part.packed_bytes(dtype, num_bytes)
    }

    fn supports(&self, dtype: DType) -> bool {
        self.part.supports(dtype)
    }

    fn supports_scaled(&self, dtype: DType) -> bool {
        self.part.supports_scaled(dtype)
    }

    fn layout_activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        self.part.layout_activation(ctx, x)
    }

    fn prepare(&self, ctx: &mut StepCtx, activation: &Activation) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([&activation.x]).writes(&activation.prepared);
        let (activation, part) = (activation.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.prepare(ctx, &activation))
    }

    fn activation_bytes(&self, num_tokens: usize, in_features: usize) -> usize {
        self.part.activation_bytes(num_tokens, in_features)
    }
}

struct DeferredLinear(Arc<dyn Linear>);

impl Linear for DeferredLinear {
    fn in_features(&self) -> usize {
        self.0.in_features()
    }

    fn out_features(&self) -> usize {
        self.0.out_features()
    }

    fn num_bytes(&self) -> usize {
        self.0.num_bytes()
    }

    fn kernel(&self) -> String {
        self.0.kernel()
    }

    fn input_precision(&self) -> InputPrecision {
        self.0.input_precision()
    }

    fn forward(&self, ctx: &mut StepCtx, x: &Activation, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([&x.x]).reads(&x.prepared).writes([out]);
        let (x, out, layer) = (x.on_inner(), out.on_inner(), self.0.clone());
        enqueue.run(move |ctx| layer.forward(ctx, &x, &out))
    }

    fn embed(&self, ctx: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([ids]).writes([out]);
        let (ids, out, layer) = (ids.on_inner(), out.on_inner(), self.0.clone());
        enqueue.run(move |ctx| layer.embed(ctx, &ids, &out))
    }
}
