//! What of the configuration decides how much memory is taken.

use quire_executor::{MaxModelLen as PlannedLen, MemoryPlan, MemoryRequest, PoolSize};
use quire_kernels::{DType, Kernels};
use quire_models::WeightSummary;

use crate::ConfigError;
use crate::config::EngineConfig;

/// The most that a pool takes of a host's memory where nobody says how much.
const MAX_DEFAULT_POOL_BYTES: usize = 4 << 30;

/// What recorded steps may take of a device's memory where nobody says how much.
const DEFAULT_GRAPH_BYTES: usize = 512 << 20;

/// What the KV pool is measured by where nobody gives its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolDefault {
    /// What `max_num_seqs` sequences of `max_model_len` need, at most 4 GiB and half of the memory: right for a host,
    /// whose memory others need too.
    #[default]
    Sequences,
    /// What is left of `gpu_memory_utilization`: right for a device with memory of its own.
    Utilization,
}

/// The configuration's share in the memory plan.
pub(super) fn memory_request(
    config: &EngineConfig,
    kv_dtype: DType,
    pool_default: PoolDefault,
    vocab_size: usize,
) -> MemoryRequest {
    let pool = match (config.num_gpu_blocks_override, config.kv_cache_memory, pool_default) {
        (Some(num_blocks), ..) => PoolSize::Blocks(num_blocks),
        (None, Some(bytes), _) => PoolSize::Bytes(usize::try_from(bytes.0).unwrap_or(usize::MAX)),
        (None, None, PoolDefault::Utilization) => PoolSize::Utilization(config.gpu_memory_utilization),
        (None, None, PoolDefault::Sequences) => PoolSize::Sequences { max_bytes: MAX_DEFAULT_POOL_BYTES },
    };
    let max_model_len = config.max_model_len();
    MemoryRequest {
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_num_seqs: config.max_num_seqs,
        block_size: config.block_size,
        max_model_len: match config.is_fitted_to_memory() {
            true => PlannedLen::FitUpTo(max_model_len),
            false => PlannedLen::Exactly(max_model_len),
        },
        pool,
        swap_bytes: (config.swap_space * f64::from(1 << 30)) as usize,
        kv_dtype,
        max_logprobs: u32::try_from(config.max_logprobs.of(vocab_size)).unwrap_or(u32::MAX),
        logprobs_mode: config.logprobs_mode,
        enforce_eager: config.enforce_eager,
        graph_bytes: graph_bytes(config, pool_default),
    }
}

/// What the weights take on the device.
pub(super) fn weight_bytes(weights: &WeightSummary, kernels: &Kernels) -> usize {
    let packed = |(&dtype, &(_, num_bytes)): (&DType, &(usize, u64))| {
        kernels.linear().packed_bytes(dtype, usize::try_from(num_bytes).unwrap_or(usize::MAX))
    };
    weights.by_dtype.iter().map(packed).fold(0, usize::saturating_add)
}

/// What is asked for beside sequences: swap space of less than a block is none, and what pins may keep must leave room for
/// a sequence of full length, but in a pool that somebody made smaller.
pub(super) fn check_extras(config: &EngineConfig, memory: &MemoryPlan) -> Result<(), ConfigError> {
    if config.swap_space > 0.0 && memory.num_swap_blocks == 0 {
        let expected = format!("0, or at least one block, of {} bytes", memory.block_bytes);
        return Err(refuse("swap_space", config.swap_space, expected));
    }
    let (max_model_len, pinned) = (memory.runner.limits.max_model_len, config.max_pinned_bytes.0);
    let need = max_model_len.div_ceil(config.block_size.max(1));
    let left =
        memory.num_blocks as u64 - (pinned / memory.block_bytes.max(1) as u64).min(memory.num_blocks as u64);
    if pinned == 0 || left >= need as u64 || config.num_gpu_blocks_override.is_some() {
        return Ok(());
    }
    let most = memory.num_blocks.saturating_sub(need) as u64 * memory.block_bytes as u64;
    let expected =
        format!("at most {most}, which leaves room for a sequence of max_model_len = {max_model_len}");
    Err(refuse("max_pinned_bytes", pinned, expected))
}

fn refuse(field: &'static str, given: impl ToString, expected: String) -> ConfigError {
    ConfigError::Value { field, given: given.to_string(), expected }
}

/// A pool that somebody made smaller than the longest sequence is used as it is.
pub(super) fn warn_of_small_pool(memory: &MemoryPlan) {
    let (num_tokens, max_model_len) = (memory.num_pool_tokens(), memory.runner.limits.max_model_len);
    if num_tokens < max_model_len {
        tracing::warn!(
            target: "quire::engine",
            "num_gpu_blocks_override leaves room for {num_tokens} tokens, max_model_len is {max_model_len}: longer \
             outputs end as length, longer prompts are refused"
        );
    }
}

/// Memory for recorded steps: what was asked for, or enough for all sizes of a large model on a device that has memory
/// of its own.
fn graph_bytes(config: &EngineConfig, pool_default: PoolDefault) -> Option<usize> {
    match (config.enforce_eager, config.graph_memory, pool_default) {
        (true, ..) => Some(0),
        (false, Some(bytes), _) => Some(usize::try_from(bytes.0).unwrap_or(usize::MAX)),
        (false, None, PoolDefault::Utilization) => Some(DEFAULT_GRAPH_BYTES),
        (false, None, PoolDefault::Sequences) => None,
    }
}
