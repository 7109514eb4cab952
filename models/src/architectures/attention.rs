//! Self-attention over a paged cache.

use std::sync::Arc;

use quire_kernels::{
    Activation, AttentionArgs, Kernels, KvLayer, Linear, Result as KernelResult, RopeTable, RopeWriteKv,
    StepCtx, Tensor, rope_write_kv,
};

use super::{DecoderSpec, GroupStep, LinearModule, Loader, QkNorm, RmsNorm, Storage};
use crate::config::ModelConfig;
use crate::error::Result;

/// Causal attention with grouped queries (Ainslie et al., GQA, 2023) and rotary positions.
pub struct Attention {
    qkv_proj: Projections,
    qk_norm: Option<Norms>,
    o_proj: Box<dyn Linear>,
    rope: Arc<RopeTable>,
    q_size: usize,
    kv_size: usize,
    scale: f32,
    soft_cap: Option<f32>,
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

/// The linear layers of attention, as the checkpoint has them.
pub(super) struct AttentionModules {
    pub(super) qkv: Vec<LinearModule>,
    pub(super) output: LinearModule,
}

/// Queries, keys and values: one product, or one each where a norm has to see them by themselves.
enum Projections {
    Merged(Box<dyn Linear>),
    Apart([Box<dyn Linear>; 3]),
}

/// Norms of queries and keys.
struct Norms {
    q: RmsNorm,
    k: RmsNorm,
    /// Elements that are normalized together, where it is not all of them.
    head_dim: Option<usize>,
}

impl AttentionModules {
    pub(super) fn new(config: &ModelConfig, spec: &DecoderSpec, name: &str) -> Self {
        let (q_size, kv_size) = (config.q_size(), config.kv_size());
        let module = |part: &str, out_features, has_bias| LinearModule {
            name: format!("{name}.{part}_proj"),
            out_features,
            has_bias,
        };
        let parts: &[(&str, usize)] = match spec.qkv {
            Storage::Apart => &[("q", q_size), ("k", kv_size), ("v", kv_size)],
            Storage::Packed => &[("qkv", q_size + 2 * kv_size)],
        };
        Self {
            qkv: parts.iter().map(|&(part, size)| module(part, size, config.qkv_bias)).collect(),
            output: module("o", config.hidden_size, config.output_bias),
        }
    }
}

impl Attention {
    /// Loads the projections, and the norms of queries and keys where `spec` has them, of layer `layer`.
    ///
    /// # Errors
    /// What is wrong with a tensor; what the backend cannot pack.
    pub fn load(
        loader: &Loader<'_>,
        spec: &DecoderSpec,
        name: &str,
        layer: usize,
        rope: &Arc<RopeTable>,
    ) -> Result<Self> {
        let config = loader.config();
        let modules = AttentionModules::new(config, spec, name);
        let qk_norm = spec.qk_norm.map(|norm| Norms::load(loader, norm, name)).transpose()?;
        Ok(Self {
            qkv_proj: match (&qk_norm, <[LinearModule; 3]>::try_from(modules.qkv)) {
                (Some(_), Ok([q, k, v])) => Projections::Apart([
                    loader.linear(&q, config.hidden_size)?,
                    loader.linear(&k, config.hidden_size)?,
                    loader.linear(&v, config.hidden_size)?,
                ]),
                (_, modules) => {
                    let modules = modules.map_or_else(|packed| packed, Vec::from);
                    Projections::Merged(loader.merged(&modules, config.hidden_size)?)
                }
            },
            qk_norm,
            o_proj: loader.linear(&modules.output, config.q_size())?,
            rope: Arc::clone(rope),
            q_size: config.q_size(),
            kv_size: config.kv_size(),
            scale: config.attention_scale,
            soft_cap: config.attention_soft_cap,
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
        let [q, k, v] = self.project(ctx, x)?;
        if let Some(norms) = &self.qk_norm {
            norms.normalize(kernels, ctx, &q, &k)?;
        }
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
                soft_cap: self.soft_cap,
                out: &mixed,
            },
        )?;
        let mixed = kernels.linear().activation(ctx, &mixed)?;
        self.o_proj.forward(ctx, &mixed, out)
    }

    fn project(&self, ctx: &mut StepCtx, x: &Activation) -> KernelResult<[Tensor; 3]> {
        let (num_tokens, dtype) = (x.x.num_rows(), x.x.dtype());
        let (k_start, v_start) = (self.q_size, self.q_size + self.kv_size);
        match &self.qkv_proj {
            Projections::Merged(qkv_proj) => {
                let qkv = ctx.alloc(dtype, &[num_tokens, v_start + self.kv_size])?;
                qkv_proj.forward(ctx, x, &qkv)?;
                let columns = [(0, k_start), (k_start, v_start), (v_start, v_start + self.kv_size)];
                Ok(columns.map(|(start, end)| qkv.columns(start, end)))
            }
            Projections::Apart([q_proj, k_proj, v_proj]) => {
                let mut project = |proj: &dyn Linear| {
                    let out = ctx.alloc(dtype, &[num_tokens, proj.out_features()])?;
                    proj.forward(ctx, x, &out)?;
                    Ok(out)
                };
                Ok([project(q_proj.as_ref())?, project(k_proj.as_ref())?, project(v_proj.as_ref())?])
            }
        }
    }

    /// The linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &dyn Linear> {
        let qkv = match &self.qkv_proj {
            Projections::Merged(qkv_proj) => std::slice::from_ref(qkv_proj),
            Projections::Apart(projections) => projections,
        };
        qkv.iter().map(AsRef::as_ref).chain([&*self.o_proj])
    }

    /// The norms of queries and keys.
    pub fn norms(&self) -> impl Iterator<Item = &RmsNorm> {
        self.qk_norm.iter().flat_map(|norms| [&norms.q, &norms.k])
    }
}

impl Norms {
    fn load(loader: &Loader<'_>, norm: QkNorm, name: &str) -> Result<Self> {
        let config = loader.config();
        let head_dim = (norm == QkNorm::PerHead).then_some(config.head_dim);
        let load =
            |part: &str, len| RmsNorm::load(loader, &format!("{name}.{part}_norm"), head_dim.unwrap_or(len));
        Ok(Self { q: load("q", config.q_size())?, k: load("k", config.kv_size())?, head_dim })
    }

    fn normalize(&self, kernels: &Kernels, ctx: &mut StepCtx, q: &Tensor, k: &Tensor) -> KernelResult<()> {
        for (norm, x) in [(&self.q, q), (&self.k, k)] {
            let rows = self.head_dim.map(|head_dim| x.reshape(&[x.num_elements() / head_dim, head_dim]));
            let rows = rows.as_ref().unwrap_or(x);
            norm.norm(kernels, ctx, rows, rows)?;
        }
        Ok(())
    }
}
