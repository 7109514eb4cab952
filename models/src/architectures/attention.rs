//! Self-attention over a paged cache.

use std::sync::Arc;

use quire_kernels::{
    Activation, AttentionArgs, Kernels, KvLayer, Linear, Result as KernelResult, RopeTable, RopeWriteKv,
    StepCtx, Tensor, rope_write_kv,
};

use super::{GroupStep, LinearModule, Loader};
use crate::error::Result;

/// Causal attention with grouped queries (Ainslie et al., GQA, 2023) and rotary positions.
pub struct Attention {
    qkv_proj: Box<dyn Linear>,
    o_proj: Box<dyn Linear>,
    rope: Arc<RopeTable>,
    q_size: usize,
    kv_size: usize,
    scale: f32,
    window: Option<usize>,
}

/// What attention needs beside its input.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// The step as the layer's KV group sees it.
    pub group: &'a GroupStep,
    /// The layer's cache.
    pub kv: &'a KvLayer,
}

impl Attention {
    /// Loads `{name}.q_proj`, `k_proj`, `v_proj` (merged) and `o_proj` of layer `layer`.
    ///
    /// # Errors
    /// What is wrong with a tensor; what the backend cannot pack.
    pub fn load(loader: &Loader<'_>, name: &str, layer: usize, rope: &Arc<RopeTable>) -> Result<Self> {
        let config = loader.config();
        let (q_size, kv_size) = (config.q_size(), config.kv_size());
        let module = |part: &str, out_features, has_bias| LinearModule {
            name: format!("{name}.{part}_proj"),
            out_features,
            has_bias,
        };
        let qkv = [("q", q_size), ("k", kv_size), ("v", kv_size)]
            .map(|(part, out_features)| module(part, out_features, config.qkv_bias));
        let output = module("o", config.hidden_size, config.output_bias);
        Ok(Self {
            qkv_proj: loader.merged(&qkv, config.hidden_size)?,
            o_proj: loader.linear(&output, q_size)?,
            rope: Arc::clone(rope),
            q_size,
            kv_size,
            scale: (config.head_dim as f32).sqrt().recip(),
            window: config.window(layer),
        })
    }

    /// Writes the attention of `x` to `out`, `[num_tokens, hidden_size]`, and its keys and values to the
    /// cache.
    ///
    /// # Errors
    /// Those of the device and of the scratch.
    pub fn forward(
        &self,
        kernels: &Kernels,
        ctx: &mut StepCtx,
        x: &Activation,
        input: AttentionInput<'_>,
        out: &Tensor,
    ) -> KernelResult<()> {
        let AttentionInput { group, kv } = input;
        let (num_tokens, dtype) = (x.x.num_rows(), x.x.dtype());
        let qkv = ctx.alloc(dtype, &[num_tokens, self.q_size + 2 * self.kv_size])?;
        self.qkv_proj.forward(ctx, x, &qkv)?;

        let (k_start, v_start) = (self.q_size, self.q_size + self.kv_size);
        let q = qkv.columns(0, k_start);
        let k = qkv.columns(k_start, v_start);
        let v = qkv.columns(v_start, v_start + self.kv_size);
        let table = &self.rope;
        rope_write_kv(kernels, ctx, &RopeWriteKv { q: &q, k: &k, v: &v, table, kv, step: &group.view })?;

        let mixed = ctx.alloc(dtype, &[num_tokens, self.q_size])?;
        kernels.attention().forward(
            ctx,
            &AttentionArgs {
                q: &q,
                kv,
                step: &group.view,
                plan: &group.plan,
                scale: self.scale,
                window: self.window,
                soft_cap: None,
                out: &mixed,
            },
        )?;
        let mixed = kernels.linear().activation(ctx, &mixed)?;
        self.o_proj.forward(ctx, &mixed, out)
    }

    /// The linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        [&*self.qkv_proj, &*self.o_proj].into_iter()
    }
}
