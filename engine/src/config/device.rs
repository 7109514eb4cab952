//! Defaults that the device decides.

use super::{EngineOptions, Source};

/// From so much memory of its own on a device gets the larger token budget.
const LARGE_DEVICE_BYTES: usize = 70 << 30;

impl EngineOptions {
    /// What a device with so much memory of its own is given where nobody says otherwise: vLLM's numbers. A host keeps the
    /// smaller ones, since a step of so many tokens takes it seconds.
    pub(crate) fn of_device(total_bytes: usize) -> Self {
        let budget = if total_bytes >= LARGE_DEVICE_BYTES { 8192 } else { 2048 };
        let options = Self::default().max_num_seqs(256).max_num_batched_tokens(budget);
        options.with_source(Source::Device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineConfig, ModelFacts};

    const FACTS: ModelFacts = ModelFacts { max_model_len: 4096 };

    fn resolve(given: EngineOptions, total_bytes: usize) -> EngineConfig {
        EngineConfig::resolve(given.or(EngineOptions::of_device(total_bytes)), FACTS).unwrap()
    }

    #[track_caller]
    fn check(given: EngineOptions, total_bytes: usize, lines: [&str; 2]) {
        let shown = resolve(given, total_bytes).to_string();
        for line in lines {
            assert!(shown.lines().any(|shown| shown == line), "{line} in {shown}");
        }
    }

    #[test]
    fn the_device_decides_what_nobody_gave() {
        let model = || EngineOptions::new("x");
        let large = ["max_num_seqs = 256 (device)", "max_num_batched_tokens = 8192 (device)"];
        check(model(), 141 << 30, large);
        check(model(), 24 << 30, ["max_num_seqs = 256 (device)", "max_num_batched_tokens = 2048 (device)"]);
        let given = ["max_num_seqs = 4 (caller)", "max_num_batched_tokens = 8192 (device)"];
        check(model().max_num_seqs(4), 141 << 30, given);
    }

    #[test]
    fn a_budget_that_nobody_gave_still_works_with_what_was_given() {
        let config = resolve(EngineOptions::new("x").max_num_seqs(10_000), 141 << 30);
        assert_eq!(config.max_num_batched_tokens, 10_000);
        let config = resolve(EngineOptions::new("x").enable_chunked_prefill(false), 24 << 30);
        assert_eq!(config.max_num_batched_tokens, 4096 + 255);
    }
}
