//! From what was asked for to what is in force.

use super::generation_override;
use std::path::{Path, PathBuf};

use quire_models::LoadFormat;

use super::{ConfigError, EngineConfig, EngineOptions, MaxModelLen, PreemptionMode, Source};

/// What the model's files say about settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// The longest context that the model was made for.
    pub max_model_len: usize,
}

impl EngineConfig {
    /// Completes and checks the options. The size of the KV pool is not known yet: see [`fitted`](Self::fitted).
    ///
    /// # Errors
    ///
    /// The first setting that cannot be used, with its value and what works.
    pub fn resolve(options: EngineOptions, facts: ModelFacts) -> Result<Self, ConfigError> {
        let mut config = options.with_defaults();
        if config.values.model.as_os_str().is_empty() {
            return Err(ConfigError::NoModel);
        }
        config.name_model();
        config.check_ranges()?;
        config.check_built()?;
        config.resolve_max_model_len(facts.max_model_len)?;
        config.resolve_token_budget();
        Ok(config)
    }

    /// The limit on prompt and output together.
    pub fn max_model_len(&self) -> usize {
        match self.values.max_model_len {
            MaxModelLen::Tokens(tokens) => tokens,
            MaxModelLen::Auto => unreachable!("resolving replaces `auto` by a number"),
        }
    }

    /// Tokens of one prompt that a step computes at most.
    pub fn prefill_chunk_limit(&self) -> Option<usize> {
        let threshold = Some(self.long_prefill_token_threshold).filter(|threshold| *threshold > 0);
        self.max_prefill_chunk.into_iter().chain(threshold).min()
    }

    /// The folder that recordings of the scheduler go to.
    pub fn recording_folder(&self) -> PathBuf {
        self.recording_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Whether `max_model_len` is `auto`: then it is what fits into the KV pool, up to this.
    pub fn is_fitted_to_memory(&self) -> bool {
        self.sources.max_model_len == Source::Memory
    }

    /// With the length that the device was planned for, so that one number holds everywhere.
    #[must_use]
    pub fn fitted(mut self, max_model_len: usize) -> Self {
        if max_model_len < self.max_model_len() {
            self.values.max_model_len = MaxModelLen::Tokens(max_model_len);
            self.sources.max_model_len = Source::Memory;
        }
        self
    }

    fn name_model(&mut self) {
        if self.values.served_model_name.is_empty() {
            let name = Path::new(&self.values.model).file_stem().unwrap_or(self.values.model.as_os_str());
            self.values.served_model_name = name.to_string_lossy().into_owned();
            self.sources.served_model_name = Source::Model;
        }
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let counts = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_num_waiting", self.max_num_waiting),
            ("tensor_parallel_size", self.tensor_parallel_size),
            ("num_gpu_blocks_override", self.num_gpu_blocks_override.unwrap_or(1)),
            ("max_prefill_chunk", self.max_prefill_chunk.unwrap_or(1)),
            ("max_num_partial_prefills", self.max_num_partial_prefills.unwrap_or(1)),
        ];
        for (field, given) in counts {
            if !(1..=u32::MAX as usize).contains(&given) {
                return Err(refuse(field, given, "at least 1 and less than 2^32"));
            }
        }
        if ![8, 16, 32, 64].contains(&self.block_size) {
            return Err(refuse("block_size", self.block_size, "8, 16, 32 or 64"));
        }
        if !(self.gpu_memory_utilization > 0.0 && self.gpu_memory_utilization <= 1.0) {
            return Err(refuse("gpu_memory_utilization", self.gpu_memory_utilization, "above 0, at most 1"));
        }
        if !(0.0..=MAX_SWAP_GIB).contains(&self.swap_space) {
            return Err(refuse(
                "swap_space",
                self.swap_space,
                "a number of GiB, at least 0, at most 1048576",
            ));
        }
        if let Some(folder) = self.recording_dir.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(refuse("recording_dir", folder.display(), "a folder that is there"));
        }
        if self.preemption_mode == PreemptionMode::Swap && self.swap_space == 0.0 {
            return Err(refuse(
                "preemption_mode",
                "swap",
                "swap_space above 0 with it, or auto or recompute",
            ));
        }
        if !["auto", "none"].contains(&self.generation_config.as_str()) {
            return Err(refuse("generation_config", &self.generation_config, "auto or none"));
        }
        self.override_generation_config.as_deref().map(generation_override::parse).transpose()?;
        Ok(())
    }

    fn check_built(&self) -> Result<(), ConfigError> {
        let not_built =
            |field, given: String, expected| Err(ConfigError::NotBuilt { field, given, expected });
        if self.tensor_parallel_size > 1 {
            return not_built("tensor_parallel_size", self.tensor_parallel_size.to_string(), "1");
        }
        const QUANTIZATIONS: [&str; 5] = ["gguf", "gptq", "awq", "fp8", "compressed-tensors"];
        if let Some(given) = self.quantization.as_deref().filter(|name| !QUANTIZATIONS.contains(name)) {
            let expected = "none, gguf, gptq, awq, fp8 or compressed-tensors";
            return not_built("quantization", given.to_owned(), expected);
        }
        Ok(())
    }

    fn resolve_max_model_len(&mut self, model: usize) -> Result<(), ConfigError> {
        let asked = self.sources.max_model_len != Source::Default;
        match self.values.max_model_len {
            MaxModelLen::Tokens(given) if given < 2 => {
                Err(refuse("max_model_len", given, "at least 2, a token of prompt and one of output"))
            }
            MaxModelLen::Tokens(given) if given > model && !self.allow_long_max_model_len => {
                Err(ConfigError::OverModelLen { given, model })
            }
            MaxModelLen::Tokens(_) => Ok(()),
            MaxModelLen::Auto => {
                self.values.max_model_len = MaxModelLen::Tokens(model);
                self.sources.max_model_len = if asked { Source::Memory } else { Source::Model };
                Ok(())
            }
        }
    }

    /// Where nobody set the budget, it must at least be one that works.
    fn resolve_token_budget(&mut self) {
        if !matches!(self.sources.max_num_batched_tokens, Source::Default | Source::Device) {
            return;
        }
        let least = match self.enable_chunked_prefill {
            true => self.max_num_seqs,
            false => self.max_model_len().saturating_add(self.max_num_seqs - 1),
        };
        self.values.max_num_batched_tokens = self.max_num_batched_tokens.max(least);
    }

    /// The seed, if one was given: then requests without a seed draw theirs from it, in order.
    pub fn given_seed(&self) -> Option<u64> {
        (self.sources.seed != Source::Default).then_some(self.values.seed)
    }

    /// Whether weights are made up.
    pub fn has_dummy_weights(&self) -> bool {
        self.load_format == LoadFormat::Dummy
    }
}

/// A PiB: what no host has.
const MAX_SWAP_GIB: f64 = 1_048_576.0;

fn refuse(field: &'static str, given: impl ToString, expected: &str) -> ConfigError {
    ConfigError::Value { field, given: given.to_string(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: ModelFacts = ModelFacts { max_model_len: 2048 };

    fn options() -> EngineOptions {
        EngineOptions::new("models/small.gguf")
    }

    #[track_caller]
    fn check(options: EngineOptions, message: &str) {
        assert_eq!(EngineConfig::resolve(options, FACTS).unwrap_err().to_string(), message);
    }

    #[test]
    fn refusals_name_setting_value_and_what_works() {
        check(EngineOptions::default(), "no model was given");
        check(options().block_size(7), "block_size is 7, expected 8, 16, 32 or 64");
        check(options().max_num_seqs(0), "max_num_seqs is 0, expected at least 1 and less than 2^32");
        check(
            options().gpu_memory_utilization(1.5),
            "gpu_memory_utilization is 1.5, expected above 0, at most 1",
        );
        let gib = "expected a number of GiB, at least 0, at most 1048576";
        check(options().swap_space(-1.0), &format!("swap_space is -1, {gib}"));
        check(options().swap_space(1e30), &format!("swap_space is {}, {gib}", 1e30));
        let nowhere = options().recording_dir(Some("/nowhere/x".into()));
        check(nowhere, "recording_dir is /nowhere/x, expected a folder that is there");
        check(
            options().preemption_mode(PreemptionMode::Swap),
            "preemption_mode is swap, expected swap_space above 0 with it, or auto or recompute",
        );
        check(
            options().max_model_len(MaxModelLen::Tokens(4096)),
            "max_model_len is 4096, the model was made for 2048: expected at most that, or allow_long_max_model_len",
        );
    }

    #[test]
    fn a_longer_context_needs_the_override() {
        let variables = [("VLLM_ALLOW_LONG_MAX_MODEL_LEN".to_owned(), "1".to_owned())];
        let options = options()
            .max_model_len(MaxModelLen::Tokens(4096))
            .or(EngineOptions::from_environment(variables).unwrap());
        assert_eq!(EngineConfig::resolve(options, FACTS).unwrap().max_model_len(), 4096);
    }

    #[test]
    fn the_smaller_limit_on_a_prompt_s_chunk_holds() {
        let limit = |chunk, threshold| {
            let options = options().max_prefill_chunk(chunk).long_prefill_token_threshold(threshold);
            EngineConfig::resolve(options, FACTS).unwrap().prefill_chunk_limit()
        };
        assert_eq!([limit(None, 0), limit(Some(64), 0)], [None, Some(64)]);
        assert_eq!(
            [limit(None, 32), limit(Some(64), 32), limit(Some(16), 32)],
            [Some(32), Some(32), Some(16)]
        );
    }

    #[test]
    fn every_value_is_shown_with_its_source() {
        let mut options = options().block_size(8);
        options.set("max_num_seqs", "4", Source::Flag).unwrap();
        let shown = EngineConfig::resolve(options, FACTS).unwrap().to_string();
        for line in ["block_size = 8 (caller)", "max_num_seqs = 4 (flag)", "max_model_len = 2048 (model)"] {
            assert!(shown.lines().any(|shown| shown == line), "{shown}");
        }
        assert_eq!(shown.lines().count(), EngineOptions::NAMES.len());
    }

    #[test]
    fn an_automatic_length_is_what_fits() {
        let auto = EngineConfig::resolve(options().max_model_len(MaxModelLen::Auto), FACTS).unwrap();
        assert!(auto.is_fitted_to_memory());
        assert_eq!(auto.fitted(128).max_model_len(), 128);
        let of_model = EngineConfig::resolve(options(), FACTS).unwrap();
        assert!(!of_model.is_fitted_to_memory());
        assert_eq!(of_model.fitted(4096).max_model_len(), 2048);
    }
}
