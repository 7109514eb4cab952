use std::sync::Arc;

use quire::kernels::{
    AttentionArgs, AttentionKernels, AttentionPlan, DeviceId, Dispatch, Error, KvGroupSpec, KvLayer,
    KvLayout, Limits, Part, ShapeKey, StepCtx, StepRows, Tensor,
};

/// Attention to the nearest tokens only, on any backend: a part that changes the question and leaves the arithmetic
/// to the part it wraps.
pub struct NearAttention {
    inner: Arc<dyn AttentionKernels>,
    window: usize,
}

impl NearAttention {
    /// A query sees itself and the `window - 1` tokens before it.
    pub fn new(inner: Arc<dyn AttentionKernels>, window: usize) -> Self {
        Self { inner, window }
    }
}

impl Part for NearAttention {
    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        self.inner.scratch_bytes(limits)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let mut lines = self.inner.dispatch();
        for line in &mut lines {
            line.kernel = format!("near({}) over {}", self.window, line.kernel);
        }
        lines
    }
}

impl AttentionKernels for NearAttention {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout, Error> {
        self.inner.kv_layout(spec, block_size)
    }

    fn plan(
        &self,
        ctx: &mut StepCtx,
        key: ShapeKey,
        rows: &StepRows,
        layout: &KvLayout,
    ) -> Result<AttentionPlan, Error> {
        self.inner.plan(ctx, key, rows, layout)
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<(), Error> {
        self.inner.write_kv(ctx, k, v, kv, slot_mapping)
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<(), Error> {
        let window = args.window.map_or(self.window, |window| window.min(self.window));
        self.inner.forward(ctx, &AttentionArgs { window: Some(window), ..*args })
    }
}
