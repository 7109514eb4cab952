use super::{Activation, Gate, KvLayer, Part, RopeTable};
use crate::{Kernels, Result, StepCtx, StepView, Tensor};

/// Forms that span several parts. Each may decline (`Ok(false)`, nothing enqueued); then the plain composition
/// runs. Model code calls the free functions of this module, which try the fused form first.
pub trait FusedKernels: Part {
    /// See [`add_rms_norm`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn add_rms_norm(&self, ctx: &mut StepCtx, args: &AddRmsNorm<'_>, out: &Activation) -> Result<bool> {
        let _ = (ctx, args, out);
        Ok(false)
    }

    /// See [`rope_write_kv`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn rope_write_kv(&self, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<bool> {
        let _ = (ctx, args);
        Ok(false)
    }

    /// See [`silu_mul`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Activation) -> Result<bool> {
        let _ = (ctx, gate_up, out);
        Ok(false)
    }
}

/// Arguments of [`add_rms_norm`].
#[derive(Clone, Copy, Debug)]
pub struct AddRmsNorm<'a> {
    /// `[num_tokens, hidden_size]`, what is added; `None` normalizes the residual as it is.
    pub delta: Option<&'a Tensor>,
    /// `[num_tokens, hidden_size]` in the dtype of the residual stream, updated in place.
    pub residual: &'a Tensor,
    /// `[hidden_size]` F32.
    pub weight: &'a Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// `residual += delta`, then `rms_norm(residual)` as a prepared input of linear layers.
///
/// # Errors
///
/// Those of the device and of the scratch.
pub fn add_rms_norm(kernels: &Kernels, ctx: &mut StepCtx, args: &AddRmsNorm<'_>) -> Result<Activation> {
    let x = ctx.alloc(kernels.device().info().activation_dtype, args.residual.dims())?;
    let out = kernels.linear().layout_activation(ctx, &x)?;
    add_rms_norm_into(kernels, ctx, args, &out)?;
    Ok(out)
}

/// As [`add_rms_norm`], into an activation that is laid out already.
pub(crate) fn add_rms_norm_into(
    kernels: &Kernels,
    ctx: &mut StepCtx,
    args: &AddRmsNorm<'_>,
    out: &Activation,
) -> Result<()> {
    if let Some(fused) = kernels.fused()
        && fused.add_rms_norm(ctx, args, out)?
    {
        return Ok(());
    }
    if let Some(delta) = args.delta {
        kernels.norm().add(ctx, delta, args.residual)?;
    }
    kernels.norm().rms_norm(ctx, args.residual, args.weight, args.eps, &out.x)?;
    kernels.linear().prepare(ctx, out)
}

/// Arguments of [`rope_write_kv`].
#[derive(Clone, Copy, Debug)]
pub struct RopeWriteKv<'a> {
    /// `[num_tokens, num_heads * head_dim]`, rotated in place.
    pub q: &'a Tensor,
    /// `[num_tokens, num_kv_heads * head_dim]`, rotated in place.
    pub k: &'a Tensor,
    /// `[num_tokens, num_kv_heads * head_dim]`.
    pub v: &'a Tensor,
    /// The rotation.
    pub table: &'a RopeTable,
    /// The layer's cache.
    pub kv: &'a KvLayer,
    /// Positions and slots.
    pub step: &'a StepView,
}

/// Rotates queries and keys, then writes keys and values to their slots.
///
/// # Errors
///
/// Those of the device.
pub fn rope_write_kv(kernels: &Kernels, ctx: &mut StepCtx, args: &RopeWriteKv<'_>) -> Result<()> {
    if let Some(fused) = kernels.fused()
        && fused.rope_write_kv(ctx, args)?
    {
        return Ok(());
    }
    let head_dim = args.kv.layout.head_dim;
    kernels.rope().rope(ctx, args.q, head_dim, &args.step.positions, args.table)?;
    kernels.rope().rope(ctx, args.k, head_dim, &args.step.positions, args.table)?;
    kernels.attention().write_kv(ctx, args.k, args.v, args.kv, &args.step.slot_mapping)
}

/// `silu(gate) · up` as a prepared input of linear layers. `gate_up` is `[num_tokens, 2 * features]`.
///
/// # Errors
///
/// Those of the device and of the scratch.
pub fn silu_mul(kernels: &Kernels, ctx: &mut StepCtx, gate_up: &Tensor) -> Result<Activation> {
    let x = ctx.alloc(gate_up.dtype(), &[gate_up.num_rows(), gate_up.num_columns() / 2])?;
    let out = kernels.linear().layout_activation(ctx, &x)?;
    silu_mul_into(kernels, ctx, gate_up, &out)?;
    Ok(out)
}

/// As [`silu_mul`], with any gate.
///
/// # Errors
///
/// Those of the device and of the scratch; [`Error::Unsupported`](crate::Error::Unsupported) for a gate that the backend
/// has not.
pub fn gated_mul(kernels: &Kernels, ctx: &mut StepCtx, gate: Gate, gate_up: &Tensor) -> Result<Activation> {
    if gate == Gate::Silu {
        return silu_mul(kernels, ctx, gate_up);
    }
    let x = ctx.alloc(gate_up.dtype(), &[gate_up.num_rows(), gate_up.num_columns() / 2])?;
    kernels.activation().gated_mul(ctx, gate, gate_up, &x)?;
    kernels.linear().activation(ctx, &x)
}

/// As [`silu_mul`], into an activation that is laid out already.
pub(crate) fn silu_mul_into(
    kernels: &Kernels,
    ctx: &mut StepCtx,
    gate_up: &Tensor,
    out: &Activation,
) -> Result<()> {
    if let Some(fused) = kernels.fused()
        && fused.silu_mul(ctx, gate_up, out)?
    {
        return Ok(());
    }
    kernels.activation().silu_mul(ctx, gate_up, &out.x)?;
    kernels.linear().prepare(ctx, out)
}
