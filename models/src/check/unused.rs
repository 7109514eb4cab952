//! Tensors that a model does not use.

use std::collections::BTreeMap;

use super::{Finding, Found};
use crate::checkpoint::{Checkpoint, WeightSummary, is_kv_scale};

impl Found {
    /// Each by itself where it is none of those that come with many checkpoints.
    pub(super) fn list_unused(&mut self, checkpoint: &Checkpoint, summary: &WeightSummary) {
        let mut harmless_ones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let ignored_head = self.note_ignored_head(checkpoint);
        for name in summary.unused.iter().filter(|name| ignored_head != Some(name.as_str())) {
            if let Some(reason) = harmless(name) {
                harmless_ones.entry(reason).or_default().push(name);
                continue;
            }
            let (file, num_bytes) = checkpoint.place_of(name);
            let (stored, message) = (checkpoint.stored_name(name), "not used by the model".to_owned());
            self.notes.push(Finding::note("unused-tensor", &file, Some(stored), num_bytes, message));
        }
        // One in each layer is one thing to say.
        for (reason, names) in harmless_ones {
            let (file, _) = checkpoint.place_of(names[0]);
            let num_bytes = names.iter().filter_map(|name| checkpoint.place_of(name).1).sum();
            let message = match names.len() - 1 {
                0 => format!("not a weight: {reason}"),
                others => format!("not a weight, nor are {others} more: {reason}"),
            };
            let stored = Some(checkpoint.stored_name(names[0]));
            self.notes.push(Finding::note("harmless-tensor", &file, stored, Some(num_bytes), message));
        }
    }

    /// A head beside the embedding that it is tied to; its name, where it is another.
    fn note_ignored_head(&mut self, checkpoint: &Checkpoint) -> Option<&'static str> {
        let name = checkpoint.ignored_head()?;
        let (file, num_bytes) = checkpoint.place_of(name);
        let message =
            "tie_word_embeddings is set, and this differs from the embedding, which is used in its place";
        let (tensor, message) = (Some(name.to_owned()), message.to_owned());
        self.notes.push(Finding::note("head-differs", &file, tensor, num_bytes, message));
        Some(name)
    }
}

/// Why a tensor that the model does not use is nothing to worry about.
fn harmless(name: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 12] = [
        (".rotary_emb.inv_freq", "rotary frequencies, which are computed from the configuration"),
        (".rotary_emb.cos_cached", "a rotary table, which is computed from the configuration"),
        (".rotary_emb.sin_cached", "a rotary table, which is computed from the configuration"),
        (".attn.bias", "a causal mask"),
        (".attn.masked_bias", "a causal mask"),
        (".attention.bias", "a causal mask"),
        (".q_scale", "a scale of queries, which are not quantized here"),
        (".prob_scale", "a scale of attention weights, which are not quantized here"),
        (".input_scale", "a scale of activations, which are not quantized here"),
        (".output_scale", "a scale of activations, which are not quantized here"),
        ("lm_head.weight", "the output head is the embedding"),
        (".position_ids", "a list of positions"),
    ];
    if is_kv_scale(name) {
        return Some("a scale of an 8-bit kv cache (--kv-cache-dtype fp8 uses it)");
    }
    KNOWN.iter().find(|(end, _)| name.ends_with(end)).map(|(_, reason)| *reason)
}
