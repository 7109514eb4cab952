//! Mixtures of experts in a GGUF file.

use quire_kernels::RouteWeights;

use super::super::{ConfigError, MAX_LAYERS, MoeConfig, STAND_IN_SIZE};
use super::keys::Keys;

/// How experts are routed that are routed by softmax.
const SOFTMAX: usize = 1;

impl Keys<'_> {
    /// Mixtures of experts. Which layers have them, the tensors tell.
    pub(super) fn moe(&self, num_layers: usize) -> Option<MoeConfig> {
        let num_experts = self.find_size("expert_count").filter(|&count| count > 0)?;
        self.check_gating();
        let has_experts = |layer| self.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
        let layers: Vec<bool> = (0..num_layers.min(MAX_LAYERS)).map(has_experts).collect();
        let rows = |name: &str| {
            let first = layers.iter().position(|&has_experts| has_experts)?;
            let tensor = self.tensor(&format!("blk.{first}.{name}.weight"))?;
            tensor.shape().iter().rev().nth(1).copied()
        };
        let of_key = self.find_size("expert_feed_forward_length");
        let of_tensors = of_key.or_else(|| rows("ffn_up_exps"));
        let intermediate_size = of_tensors.or_else(|| self.size("feed_forward_length"));
        Some(MoeConfig {
            num_experts,
            top_k: self.size("expert_used_count").unwrap_or(1),
            intermediate_size: intermediate_size.unwrap_or(STAND_IN_SIZE),
            weights: match self.prefix() {
                "qwen2moe" => RouteWeights::Probabilities,
                _ => RouteWeights::Normalized,
            },
            shared_intermediate_size: rows("ffn_up_shexp"),
            layers,
        })
    }

    fn check_gating(&self) {
        let gating = self.find_size("expert_gating_func").unwrap_or(SOFTMAX);
        if gating != SOFTMAX {
            self.faults().add(ConfigError::Unsupported {
                field: self.key("expert_gating_func"),
                given: gating.to_string(),
                expected: format!("{SOFTMAX}, softmax"),
            });
        }
    }
}
