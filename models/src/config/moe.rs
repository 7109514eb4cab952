//! Mixture of experts: how many there are, and which layers have them.

use quire_kernels::RouteWeights;

use super::faults::Faults;
use super::fields::Fields;
use super::{MAX_LAYERS, MAX_SIZE, Naming, in_range};

/// Experts of all layers together that are taken seriously: each has three tensors.
const MAX_EXPERTS: usize = 1 << 20;

/// The mixture-of-experts layers of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts a layer.
    pub num_experts: usize,
    /// Experts that a token goes to.
    pub top_k: usize,
    /// Width inside an expert.
    pub intermediate_size: usize,
    /// What the sum over a token's experts is weighted with.
    pub weights: RouteWeights,
    /// Width inside the expert that all tokens share, where there is one.
    pub shared_intermediate_size: Option<usize>,
    /// For each layer, whether it has experts.
    pub layers: Vec<bool>,
}

impl MoeConfig {
    /// `None` where its sizes cannot be read.
    pub(super) fn from_json(fields: Fields<'_>, num_layers: usize) -> Option<Self> {
        let count =
            if fields.find("num_local_experts").is_some() { "num_local_experts" } else { "num_experts" };
        let width = match fields.find("moe_intermediate_size") {
            Some(_) => "moe_intermediate_size",
            None => "intermediate_size",
        };
        let step = fields.size("decoder_sparse_step").unwrap_or(1);
        let dense = fields.sizes("mlp_only_layers").unwrap_or_default();
        let has_experts =
            |layer: usize| step > 0 && (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
        let num_experts = fields.required_size(count);
        let top_k = fields.required_size("num_experts_per_tok");
        let intermediate_size = fields.required_size(width);
        let weights = match fields.boolean("norm_topk_prob").unwrap_or(false) {
            true => RouteWeights::Normalized,
            false => RouteWeights::Probabilities,
        };
        // Some files say 0 for "none".
        let shared_intermediate_size =
            fields.size("shared_expert_intermediate_size").filter(|&size| size > 0);
        let layers = (0..num_layers.min(MAX_LAYERS)).map(has_experts).collect();
        Some(Self {
            num_experts: num_experts?,
            top_k: top_k?,
            intermediate_size: intermediate_size?,
            weights,
            shared_intermediate_size,
            layers,
        })
    }

    pub(super) fn check(&self, name: Naming<'_>, faults: &Faults) {
        let num_layers = self.layers.iter().filter(|&&has_experts| has_experts).count();
        let all = format!("{} in {num_layers} layers", name("num_experts"));
        let all_experts = self.num_experts.saturating_mul(num_layers.max(1));
        let shared = self
            .shared_intermediate_size
            .map(|given| (name("shared_expert_intermediate_size"), given, MAX_SIZE));
        let sizes = [
            (name("num_experts"), self.num_experts, MAX_EXPERTS),
            (all, all_experts, MAX_EXPERTS),
            (name("num_experts_per_tok"), self.top_k, self.num_experts),
            (name("moe_intermediate_size"), self.intermediate_size, MAX_SIZE),
        ];
        for (field, given, max) in sizes.into_iter().chain(shared) {
            faults.take(in_range(field, given, max));
        }
    }
}
