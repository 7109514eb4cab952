//! Counters and gauges of an engine.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Distributions, FinishReason};

/// What an engine has done, and what it is doing. Counters only grow, and count each thing once: what is computed
/// again after a preemption is not counted again. All of it is of one moment: `num_requests` = `num_running` + `num_waiting` +
/// all of `num_finished`, and `num_first_tokens` values lie in [`Distributions::ttft_s`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EngineStats {
    /// Requests that run now: at least one of their outputs does.
    pub num_running: usize,
    /// Requests that wait.
    pub num_waiting: usize,
    /// Those of them whose blocks are on the host.
    pub num_swapped: usize,
    /// How many of those that wait, swapped ones among them, wait for what: `queue` (others come first), `blocks`, `seq_limit`, `token_budget`,
    /// `partial_prefills`, `swap`, `thrashing`, `other`.
    pub waiting_by_reason: BTreeMap<&'static str, usize>,
    /// Blocks of the KV cache that sequences hold.
    pub num_live_blocks: usize,
    /// Blocks kept for their content alone.
    pub num_cached_blocks: usize,
    /// Blocks without content.
    pub num_free_blocks: usize,
    /// Requests that were queued.
    pub num_requests: u64,
    /// Requests that ended, by reason.
    pub num_finished: BTreeMap<FinishReason, u64>,
    /// Requests that gave their first token.
    pub num_first_tokens: u64,
    /// Prompt tokens of requests that gave their first token.
    pub num_prompt_tokens: u64,
    /// Tokens generated.
    pub num_generation_tokens: u64,
    /// Tokens looked up in the prefix cache.
    pub num_prefix_query_tokens: u64,
    /// Tokens found there.
    pub num_prefix_hit_tokens: u64,
    /// Times that a sequence gave way.
    pub num_preemptions: u64,
    /// Those of them that moved its blocks to the host.
    pub num_swaps: u64,
    /// Blocks of the swap space, and those of them that are free.
    pub num_swap_blocks: usize,
    /// See [`num_swap_blocks`](Self::num_swap_blocks).
    pub num_free_swap_blocks: usize,
    /// Sequences that may run for now, if preemptions have lowered that.
    pub admission_limit: Option<u32>,
    /// Steps.
    pub num_steps: u64,
    /// Tokens computed over all steps, padding and repeated work included.
    pub num_step_tokens: u64,
    /// Microseconds that the device worked on steps.
    pub device_time_us: u64,
    /// Microseconds that it waited between steps for the host, as far as it can tell.
    pub device_idle_us: u64,
    /// What requests and steps were like.
    pub distributions: Distributions,
}

impl EngineStats {
    /// Blocks of the pool.
    pub fn num_blocks(&self) -> usize {
        self.num_live_blocks + self.num_cached_blocks + self.num_free_blocks
    }

    /// The share of the pool that sequences hold, in `0.0..=1.0`.
    pub fn kv_cache_usage(&self) -> f64 {
        self.num_live_blocks as f64 / self.num_blocks().max(1) as f64
    }
}
