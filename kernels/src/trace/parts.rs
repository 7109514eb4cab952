//! Normalization, rotation, gating, attention, collectives.

use super::Traced;
use super::queue::{Op, record};
use crate::{
    ActivationKernels, ActivationOp, AttentionArgs, AttentionKernels, AttentionPlan, CommKernels,
    KvGroupSpec, KvLayer, KvLayout, NormKernels, Result, RopeKernels, RopeTable, ShapeKey, StepCtx, StepRows,
    Tensor,
};

impl NormKernels for Traced<dyn NormKernels> {
    fn rms_norm(&self, ctx: &mut StepCtx, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        self.0.rms_norm(ctx, x, weight, eps, out)?;
        record(ctx, Op::new("norm.rms_norm"), &[("out", out)])
    }

    fn add(&self, ctx: &mut StepCtx, x: &Tensor, residual: &Tensor) -> Result<()> {
        self.0.add(ctx, x, residual)?;
        record(ctx, Op::new("norm.add"), &[("residual", residual)])
    }

    fn gather_rows(&self, ctx: &mut StepCtx, x: &Tensor, idx: &Tensor, out: &Tensor) -> Result<()> {
        self.0.gather_rows(ctx, x, idx, out)?;
        record(ctx, Op::new("norm.gather_rows"), &[("out", out)])
    }
}

impl RopeKernels for Traced<dyn RopeKernels> {
    fn rope(
        &self,
        ctx: &mut StepCtx,
        x: &Tensor,
        head_dim: usize,
        positions: &Tensor,
        table: &RopeTable,
    ) -> Result<()> {
        self.0.rope(ctx, x, head_dim, positions, table)?;
        record(ctx, Op::new("rope.rope"), &[("x", x)])
    }
}

impl ActivationKernels for Traced<dyn ActivationKernels> {
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        self.0.silu_mul(ctx, gate_up, out)?;
        record(ctx, Op::new("activation.silu_mul"), &[("out", out)])
    }

    fn supports(&self, op: ActivationOp) -> bool {
        self.0.supports(op)
    }

    fn gelu_tanh_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        self.0.gelu_tanh_mul(ctx, gate_up, out)?;
        record(ctx, Op::new("activation.gelu_tanh_mul"), &[("out", out)])
    }

    fn scale(&self, ctx: &mut StepCtx, x: &Tensor, factor: f32) -> Result<()> {
        self.0.scale(ctx, x, factor)?;
        record(ctx, Op::new("activation.scale"), &[("x", x)])
    }

    fn soft_cap(&self, ctx: &mut StepCtx, x: &Tensor, cap: f32) -> Result<()> {
        self.0.soft_cap(ctx, x, cap)?;
        record(ctx, Op::new("activation.soft_cap"), &[("x", x)])
    }
}

impl AttentionKernels for Traced<dyn AttentionKernels> {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        self.0.kv_layout(spec, block_size)
    }

    fn supports_soft_cap(&self) -> bool {
        self.0.supports_soft_cap()
    }

    fn supports_kv_scales(&self) -> bool {
        self.0.supports_kv_scales()
    }

    fn plan(
        &self,
        ctx: &mut StepCtx,
        key: ShapeKey,
        rows: &StepRows,
        layout: &KvLayout,
    ) -> Result<AttentionPlan> {
        self.0.plan(ctx, key, rows, layout)
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<()> {
        self.0.write_kv(ctx, k, v, kv, slot_mapping)?;
        record(ctx, Op::new("attention.write_kv"), &[("k", k), ("v", v)])
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        self.0.forward(ctx, args)?;
        record(ctx, Op::new("attention.forward"), &[("out", args.out)])
    }
}

impl CommKernels for Traced<dyn CommKernels> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<()> {
        self.0.all_reduce(ctx, x)?;
        record(ctx, Op::new("comm.all_reduce"), &[("x", x)])
    }

    fn all_gather(&self, ctx: &mut StepCtx, x: &Tensor, out: &Tensor) -> Result<()> {
        self.0.all_gather(ctx, x, out)?;
        record(ctx, Op::new("comm.all_gather"), &[("out", out)])
    }
}
