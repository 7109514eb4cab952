//! The start-up report.

use quire_kernels::DType;
use quire_models::WeightSummary;

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
    if let Some(note) = plan.kv_cache_note() {
        tracing::info!(target: "quire::engine", "[kv cache] {note}");
    }
    if let Some(revision) = config.revision.as_deref() {
        tracing::info!(target: "quire::engine", "[model] revision {revision}");
    }
    tracing::info!(target: "quire::engine", "[fingerprint] {}", plan.fingerprint());
    // Few models have experts.
    let has_experts = model.moe.is_some();
    plan.kernels().dispatch().log(|line| is_used(&line.op, weights) && (has_experts || line.op != "moe"));
}

/// Whether the model uses an operation: linear layers are served by a kernel for each dtype of their weights.
fn is_used(op: &str, weights: &WeightSummary) -> bool {
    let (kind, dtypes) = match op.strip_prefix("linear.scaled.") {
        Some(name) => (Some(name), &weights.scaled_dtypes),
        None => (op.strip_prefix("linear."), &weights.matrix_dtypes),
    };
    let dtype = kind.and_then(|name| DType::ALL.into_iter().find(|dtype| dtype.name() == name));
    dtype.is_none_or(|dtype| dtypes.contains(&dtype))
}

/// `210 tensors in Q4_1, 61 in F32`, and so on.
fn dtypes(plan: &EnginePlan) -> String {
    let shown = plan.weights().by_dtype.iter().map(|(dtype, (num_tensors, num_bytes))| {
        format!("{num_tensors} tensors in {dtype} ({})", crate::Bytes(*num_bytes))
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_the_formats_of_the_weights_are_listed() {
        let weights = WeightSummary {
            matrix_dtypes: BTreeSet::from([DType::Q4_1, DType::Q8_0]),
            scaled_dtypes: BTreeSet::from([DType::U4]),
            ..WeightSummary::default()
        };
        let ops = ["attention", "linear.bf16", "linear.q4_1", "linear.q8_0", "linear", "linear.u4"];
        let scaled = ["linear.scaled.u4", "linear.scaled.u8"];
        let listed: Vec<_> = ops.into_iter().chain(scaled).filter(|op| is_used(op, &weights)).collect();
        assert_eq!(listed, ["attention", "linear.q4_1", "linear.q8_0", "linear", "linear.scaled.u4"]);
    }
}
