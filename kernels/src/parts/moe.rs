use super::{Activation, Gate, HostWeight, Part};
use crate::{Result, StepCtx, Tensor};

/// Mixture of experts (Shazeer et al., 2017): each token goes through the few gated MLPs that its router picks.
///
/// ```text
/// logits -> route -> Routes          which experts, with which weights
/// x, Routes -> Experts::forward      rows brought together by expert, multiplied, summed up by weight
/// ```
pub trait MoeKernels: Part {
    /// Packs the experts of a layer. Not part of a step: it allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Weight`](crate::Error::Weight), [`Error::OutOfMemory`](crate::Error::OutOfMemory), and
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a gate or a dtype without a kernel.
    fn pack(&self, experts: &[ExpertWeights<'_>], gate: Gate) -> Result<Box<dyn Experts>>;

    /// Most scratch that [`Experts::forward`] takes for so many tokens.
    fn experts_bytes(&self, shape: &ExpertShape, num_tokens: usize) -> usize;

    /// Picks the best experts of each token by the softmax of its `logits`, `[num_tokens, num_experts]` F32: as many
    /// as `routes` has columns, the best first (ties: the lower index).
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn route(&self, ctx: &mut StepCtx, logits: &Tensor, weights: RouteWeights, routes: &Routes)
    -> Result<()>;

    /// `out += sigmoid(gate) · x`: an expert that all tokens share. `gate` is `[num_tokens, 1]` F32, `x` and `out` are
    /// `[num_tokens, hidden_size]` in the activation dtype.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn add_gated(&self, ctx: &mut StepCtx, gate: &Tensor, x: &Tensor, out: &Tensor) -> Result<()>;
}

/// The packed experts of a layer.
pub trait Experts: Send + Sync {
    /// Device memory that the weights take.
    fn num_bytes(&self) -> usize;

    /// The kernel that serves them; equal layers give equal names.
    fn kernel(&self) -> String;

    /// `out[t] = Σ weight · down(gate(g) · u)` over the token's routes, where `g` and `u` are the halves of `gate_up(x[t])`.
    /// `out` is `[num_tokens, hidden_size]` in the activation dtype. The sum is in the order of the experts.
    ///
    /// # Errors
    ///
    /// Those of the device and of the scratch.
    fn forward(&self, ctx: &mut StepCtx, x: &Activation, routes: &Routes, out: &Tensor) -> Result<()>;
}

/// The weights of one expert.
#[derive(Clone, Debug)]
pub struct ExpertWeights<'a> {
    /// The gate's projection and the other one, one after the other, `[intermediate_size, hidden_size]` each; or both
    /// in one matrix.
    pub gate_up: Vec<HostWeight<'a>>,
    /// `[hidden_size, intermediate_size]`.
    pub down: HostWeight<'a>,
}

/// The sizes of the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Width of what goes in and comes out.
    pub hidden_size: usize,
    /// Width inside.
    pub intermediate_size: usize,
    /// Experts that a token may go to.
    pub num_experts: usize,
    /// Experts that a token goes to.
    pub top_k: usize,
}

/// What the sum over a token's experts is weighted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteWeights {
    /// Their probabilities among all experts.
    Probabilities,
    /// Their probabilities, divided by their sum.
    Normalized,
}

/// Where the tokens go.
#[derive(Clone, Debug)]
pub struct Routes {
    /// `[num_tokens, top_k]` I32.
    pub experts: Tensor,
    /// `[num_tokens, top_k]` F32.
    pub weights: Tensor,
}
