//! Paged attention.

use super::Deferred;
use super::enqueue::Enqueue;
use super::on_inner::OnInner;
use crate::{
    AttentionArgs, AttentionKernels, AttentionPlan, KvGroupSpec, KvLayer, KvLayout, Result, ShapeKey,
    StepCtx, StepRows, Tensor,
};

impl AttentionKernels for Deferred<dyn AttentionKernels> {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        self.part.kv_layout(spec, block_size)
    }

    fn supports_soft_cap(&self) -> bool {
        self.part.supports_soft_cap()
    }

    fn supports_kv_scales(&self) -> bool {
        self.part.supports_kv_scales()
    }

    fn plan(
        &self,
        ctx: &mut StepCtx,
        key: ShapeKey,
        rows: &StepRows,
        layout: &KvLayout,
    ) -> Result<AttentionPlan> {
        self.part.plan(ctx, key, rows, layout)
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([k, v, slot_mapping]);
        let (k, v, kv, slots) = (k.on_inner(), v.on_inner(), kv.on_inner(), slot_mapping.on_inner());
        let part = self.part.clone();
        enqueue.run(move |ctx| part.write_kv(ctx, &k, &v, &kv, &slots))
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([args.q]).reads(&args.plan.tensors).writes([args.out]);
        let (q, out) = (args.q.on_inner(), args.out.on_inner());
        let (kv, step) = (args.kv.on_inner(), args.step.on_inner());
        let plan = AttentionPlan { tensors: args.plan.tensors.on_inner() };
        let (scale, window, soft_cap, part) = (args.scale, args.window, args.soft_cap, self.part.clone());
        enqueue.run(move |ctx| {
            let (q, kv, step, plan, out) = (&q, &kv, &step, &plan, &out);
            part.forward(ctx, &AttentionArgs { q, kv, step, plan, scale, window, soft_cap, out })
        })
    }
}
