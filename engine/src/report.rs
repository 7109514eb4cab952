//! The start-up report.

use std::collections::BTreeSet;

use quire_kernels::DType;

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
    plan.kernels().dispatch().log(|line| is_used(&line.op, &weights.matrix_dtypes));
}

/// Whether the model uses an operation: linear layers are served by a kernel for each dtype of their weights.
fn is_used(op: &str, matrix_dtypes: &BTreeSet<DType>) -> bool {
    let dtype = op.strip_prefix("linear.").and_then(|name| DType::ALL.into_iter().find(|d| d.name() == name));
    dtype.is_none_or(|dtype| matrix_dtypes.contains(&dtype))
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
    use super::*;

    #[test]
    fn only_the_formats_of_the_weights_are_listed() {
        let dtypes = BTreeSet::from([DType::Q4_1, DType::Q8_0]);
        let ops = ["attention", "linear.bf16", "linear.f32", "linear.q4_1", "linear.q8_0", "linear"];
        let listed: Vec<_> = ops.into_iter().filter(|op| is_used(op, &dtypes)).collect();
        assert_eq!(listed, ["attention", "linear.q4_1", "linear.q8_0", "linear"]);
    }
}
