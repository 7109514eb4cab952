//! What keys and values are kept in.

use quire_kernels::{DType, Kernels, KvScales};
use quire_models::{Checkpoint, WeightSummary};

use crate::config::{DTypeChoice, EngineConfig};
use crate::{ConfigError, Result};

/// The type of the cache's elements, and what they are multiplied with.
pub(super) struct KvCacheChoice {
    pub(super) dtype: DType,
    /// For each layer; empty where elements stand for themselves.
    pub(super) scales: Vec<KvScales>,
    /// What became of the checkpoint's scales, where there is something to say.
    pub(super) note: Option<String>,
}

impl KvCacheChoice {
    /// Scales are for caches of 8 bits; a wider one needs none, and what is wrong with them does not matter to it.
    pub(super) fn new(
        config: &EngineConfig,
        checkpoint: &Checkpoint,
        weights: &WeightSummary,
        kernels: &Kernels,
    ) -> Result<Self> {
        let dtype = kv_dtype(config, weights, kernels.device().info().activation_dtype);
        let stored = checkpoint.kv_scales();
        if dtype.block_bytes() > 1 {
            let has_scales = !matches!(&stored, Ok(scales) if scales.is_empty());
            let note = || {
                format!(
                    "the checkpoint's scales are for an 8-bit cache and not used in {dtype} (--kv-cache-dtype fp8 \
                     uses them)"
                )
            };
            return Ok(Self { dtype, scales: Vec::new(), note: has_scales.then(note) });
        }
        let scales = stored?;
        let needs_support = scales.iter().any(|scales| *scales != KvScales::ONE);
        if needs_support && !kernels.attention().supports_kv_scales() {
            let backend = &kernels.device().info().backend;
            return Err(ConfigError::Value {
                field: "kv_cache_dtype",
                given: dtype.to_string(),
                expected: format!("auto: attention of {backend} does not apply the checkpoint's scales"),
            }
            .into());
        }
        Ok(Self { dtype, note: Some(describe(dtype, &scales)), scales })
    }
}

fn describe(dtype: DType, scales: &[KvScales]) -> String {
    if scales.is_empty() {
        return format!("{dtype} without scales: the checkpoint has none, so what is too large is cut off");
    }
    let range = |of: fn(&KvScales) -> f32| {
        let (low, high) = scales.iter().map(of).fold((f32::MAX, 0.0f32), |(l, h), s| (l.min(s), h.max(s)));
        if low == high { format!("{low}") } else { format!("{low} to {high}") }
    };
    format!("{dtype} with the checkpoint's scales: keys {}, values {}", range(|s| s.k), range(|s| s.v))
}

/// Keys and values are kept in what a half-precision device computes in; elsewhere in what most of the weights are kept
/// in, or in float16 where those are quantized.
fn kv_dtype(config: &EngineConfig, weights: &WeightSummary, activation: DType) -> DType {
    if let DTypeChoice::DType(dtype) = config.kv_cache_dtype {
        return dtype;
    }
    if activation != DType::F32 {
        return activation;
    }
    let most = weights.by_dtype.iter().max_by_key(|(_, (_, num_bytes))| *num_bytes);
    match most.map(|(dtype, _)| *dtype) {
        Some(dtype @ (DType::F32 | DType::BF16)) => dtype,
        _ => DType::F16,
    }
}
