//! The memory sum, as it was planned before the weights were read.

use quire_executor::MemoryReport;
use serde_json::{Value, json};

/// The sum and its parts, in bytes: `total_bytes` is what weights, KV cache, scratch (activations and workspace), row state
/// and graphs (recorded steps) take of the device; the swap space is the host's.
pub(crate) fn sum(report: &MemoryReport) -> Value {
    let plan = &report.plan;
    json!({
        "device": format!("{} ({})", plan.device.backend, plan.device.name),
        "weights_bytes": plan.weight_bytes,
        "kv_cache_bytes": plan.pool_bytes(),
        "scratch_bytes": plan.scratch_bytes,
        "row_state_bytes": plan.row_state_bytes,
        "graphs_bytes": plan.graph_bytes,
        "total_bytes": plan.total_bytes(),
        "device_bytes": plan.device.total_bytes,
        "block_bytes": plan.block_bytes,
        "num_blocks": plan.num_blocks,
        "swap_bytes": plan.num_swap_blocks * plan.block_bytes,
        "loaded_weights_bytes": report.loaded_weight_bytes,
        "in_use_bytes": report.measured.after_pool,
    })
}
