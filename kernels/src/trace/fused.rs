//! Forms across parts: what they take is recorded as the composition would be, what they decline is recorded by the
//! parts that then run.

use super::Traced;
use super::queue::{Op, record};
use crate::{Activation, AddRmsNorm, FusedKernels, Result, RopeWriteKv, StepCtx, Tensor};

impl FusedKernels for Traced<dyn FusedKernels> {
    fn add_rms_norm(&self, ctx: &mut StepCtx, args: &AddRmsNorm<'_>, out: &Activation) -> Result<bool> {
        if !self.0.add_rms_norm(ctx, args, out)? {
            return Ok(false);
        }
        if args.delta.is_some() {
            record(ctx, Op::fused("norm.add"), &[("residual", args.residual)])?;
        }
        record(ctx, Op::fused("norm.rms_norm"), &[("out", &out.x)])?;
        Ok(true)
    }

    fn rope_write_kv(&self, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<bool> {
        if !self.0.rope_write_kv(ctx, args)? {
            return Ok(false);
        }
        record(ctx, Op::fused("rope.rope"), &[("x", args.q)])?;
        record(ctx, Op::fused("rope.rope"), &[("x", args.k)])?;
        record(ctx, Op::fused("attention.write_kv"), &[("k", args.k), ("v", args.v)])?;
        Ok(true)
    }

    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Activation) -> Result<bool> {
        if !self.0.silu_mul(ctx, gate_up, out)? {
            return Ok(false);
        }
        record(ctx, Op::fused("activation.silu_mul"), &[("out", &out.x)])?;
        Ok(true)
    }
}
