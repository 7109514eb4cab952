use super::Part;
use crate::{Error, Result, StepCtx, Tensor};

/// What the gate's projection goes through before it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The Gaussian error linear unit (Hendrycks and Gimpel, 2016) with its hyperbolic tangent:
    /// `x / 2 · (1 + tanh(sqrt(2 / π) (x + 0.044715 x³)))`.
    GeluTanh,
}

/// An operation of [`ActivationKernels`] that a backend may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ActivationOp {
    /// [`ActivationKernels::gelu_tanh_mul`].
    GeluTanhMul,
    /// [`ActivationKernels::scale`].
    Scale,
    /// [`ActivationKernels::soft_cap`].
    SoftCap,
}

/// Gated activations, and functions of single elements.
///
/// Only [`silu_mul`](Self::silu_mul) is in every backend. A model asks for the others with [`supports`](Self::supports)
/// when it is loaded, so that it is refused before a step.
pub trait ActivationKernels: Part {
    /// `out = silu(gate) · up` where a row of `gate_up`, `[num_tokens, 2 * features]`, holds the gate and then
    /// the up projection (Shazeer, 2020); `out` is `[num_tokens, features]`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn silu_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()>;

    /// Whether the backend has the operation.
    fn supports(&self, op: ActivationOp) -> bool {
        let _ = op;
        false
    }

    /// As [`silu_mul`](Self::silu_mul) with [`Gate::GeluTanh`].
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], those of the device.
    fn gelu_tanh_mul(&self, ctx: &mut StepCtx, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        let _ = (ctx, gate_up, out);
        Err(unsupported(self, ActivationOp::GeluTanhMul))
    }

    /// `x = factor · x`, in place; `x` is `[rows, columns]` in the activation dtype or that of the residual stream.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], those of the device.
    fn scale(&self, ctx: &mut StepCtx, x: &Tensor, factor: f32) -> Result<()> {
        let _ = (ctx, x, factor);
        Err(unsupported(self, ActivationOp::Scale))
    }

    /// `x = cap · tanh(x / cap)`, in place; `x` is `[rows, columns]` F32.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], those of the device.
    fn soft_cap(&self, ctx: &mut StepCtx, x: &Tensor, cap: f32) -> Result<()> {
        let _ = (ctx, x, cap);
        Err(unsupported(self, ActivationOp::SoftCap))
    }
}

impl dyn ActivationKernels + '_ {
    /// The gate of that kind: [`silu_mul`](ActivationKernels::silu_mul) or
    /// [`gelu_tanh_mul`](ActivationKernels::gelu_tanh_mul).
    ///
    /// # Errors
    ///
    /// Theirs.
    pub fn gated_mul(&self, ctx: &mut StepCtx, gate: Gate, gate_up: &Tensor, out: &Tensor) -> Result<()> {
        match gate {
            Gate::Silu => self.silu_mul(ctx, gate_up, out),
            Gate::GeluTanh => self.gelu_tanh_mul(ctx, gate_up, out),
        }
    }

    /// Says no, with the backend's name, where the operation is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub fn require(&self, op: ActivationOp) -> Result<()> {
        if self.supports(op) { Ok(()) } else { Err(unsupported(self, op)) }
    }
}

impl Gate {
    /// What a backend needs for it beside the required operations.
    pub fn op(self) -> Option<ActivationOp> {
        match self {
            Self::Silu => None,
            Self::GeluTanh => Some(ActivationOp::GeluTanhMul),
        }
    }
}

fn unsupported<P: Part + ?Sized>(part: &P, op: ActivationOp) -> Error {
    let what = match op {
        ActivationOp::GeluTanhMul => "gates of gelu_tanh",
        ActivationOp::Scale => "hidden states that are scaled",
        ActivationOp::SoftCap => "logits with a soft cap",
    };
    Error::Unsupported {
        backend: format!("device {}", part.device()),
        part: "activation",
        what: what.to_owned(),
    }
}
