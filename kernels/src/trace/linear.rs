//! Linear layers, by the names of their weights.

use std::sync::Arc;

use super::Traced;
use super::queue::{Op, record};
use crate::{Activation, DType, HostWeight, InputPrecision, Linear, LinearKernels, Result, StepCtx, Tensor};

impl LinearKernels for Traced<dyn LinearKernels> {
    fn pack(&self, weights: &[HostWeight<'_>]) -> Result<Box<dyn Linear>> {
        let names: Vec<&str> = weights.iter().map(|weight| weight.name).collect();
        Ok(Box::new(TracedLinear { layer: self.0.pack(weights)?, weight: names.join(" + ").into() }))
    }

    fn packed_bytes(&self, dtype: DType, num_bytes: usize) -> usize {
        self.0.packed_bytes(dtype, num_bytes)
    }

    fn supports(&self, dtype: DType) -> bool {
        self.0.supports(dtype)
    }

    fn supports_scaled(&self, dtype: DType) -> bool {
        self.0.supports_scaled(dtype)
    }

    fn layout_activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        self.0.layout_activation(ctx, x)
    }

    fn prepare(&self, ctx: &mut StepCtx, activation: &Activation) -> Result<()> {
        self.0.prepare(ctx, activation)
    }

    fn activation(&self, ctx: &mut StepCtx, x: &Tensor) -> Result<Activation> {
        self.0.activation(ctx, x)
    }

    fn activation_bytes(&self, num_tokens: usize, in_features: usize) -> usize {
        self.0.activation_bytes(num_tokens, in_features)
    }
}

struct TracedLinear {
    layer: Box<dyn Linear>,
    weight: Arc<str>,
}

impl TracedLinear {
    fn op(&self, name: &'static str) -> Op<'_> {
        Op { weight: Some(&self.weight), ..Op::new(name) }
    }
}

impl Linear for TracedLinear {
    fn in_features(&self) -> usize {
        self.layer.in_features()
    }

    fn out_features(&self) -> usize {
        self.layer.out_features()
    }

    fn num_bytes(&self) -> usize {
        self.layer.num_bytes()
    }

    fn kernel(&self) -> String {
        self.layer.kernel()
    }

    fn input_precision(&self) -> InputPrecision {
        self.layer.input_precision()
    }

    fn forward(&self, ctx: &mut StepCtx, x: &Activation, out: &Tensor) -> Result<()> {
        self.layer.forward(ctx, x, out)?;
        record(ctx, self.op("linear.forward"), &[("out", out)])
    }

    fn embed(&self, ctx: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        self.layer.embed(ctx, ids, out)?;
        record(ctx, self.op("linear.embed"), &[("out", out)])
    }
}
