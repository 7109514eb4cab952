//! The start-up report.

use crate::EnginePlan;

/// Logs what was decided before the weights are read. The memory sum, beside what was measured, is logged by the
/// worker once it has loaded.
pub(crate) fn log_plan(plan: &EnginePlan) {
    let (config, weights) = (plan.config(), plan.weights());
    for line in config.to_string().lines() {
        tracing::info!(target: "quire::engine", "[config] {line}");
    }
    let model = plan.checkpoint().config();
    tracing::info!(
        target: "quire::engine",
        "[model] {} ({}): {} layers, hidden size {}, {} heads, {} kv heads, vocabulary {}",
        model.architecture,
        plan.checkpoint().format(),
        model.num_layers,
        model.hidden_size,
        model.num_heads,
        model.num_kv_heads,
        model.vocab_size,
    );
    tracing::info!(
        target: "quire::engine",
        "[model] {:.1} M parameters: {}",
        weights.num_parameters as f64 / 1e6,
        dtypes(plan)
    );
    plan.kernels().dispatch().log();
}

/// `210 tensors in Q4_1, 61 in F32`, and so on.
fn dtypes(plan: &EnginePlan) -> String {
    let shown = plan.weights().by_dtype.iter().map(|(dtype, (num_tensors, num_bytes))| {
        format!("{num_tensors} tensors in {dtype} ({})", crate::Bytes(*num_bytes))
    });
    shown.collect::<Vec<_>>().join(", ")
}
