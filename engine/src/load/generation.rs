//! How the model's makers would have it sampled.

use quire_models::{Checkpoint, GenerationConfig};

use crate::checked::{EosTokens, ParamLimits};
use crate::config::EngineConfig;
use crate::{ConfigError, SamplingParams};

/// What no request could be sampled with is told with the file that says so.
pub(super) fn check_generation(config: &EngineConfig, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
    if config.generation_config != "auto" {
        return Ok(());
    }
    let vocab_size = checkpoint.config().vocab_size;
    let limits = ParamLimits {
        vocab_size,
        max_logprobs: config.max_logprobs.of(vocab_size),
        logprobs_mode: config.logprobs_mode,
        eos: EosTokens::default(),
    };
    let checked = default_params(checkpoint.generation()).check(&limits);
    checked.map(drop).map_err(|error| ConfigError::Generation {
        file: checkpoint.path().join("generation_config.json").display().to_string(),
        message: error.to_string(),
    })
}

/// How the model's makers would have it sampled.
pub(super) fn default_params(generation: &GenerationConfig) -> SamplingParams {
    let plain = SamplingParams::default();
    SamplingParams {
        temperature: generation.temperature.unwrap_or(plain.temperature),
        top_p: generation.top_p.unwrap_or(plain.top_p),
        top_k: generation.top_k.and_then(|k| i64::try_from(k).ok()).unwrap_or(plain.top_k),
        min_p: generation.min_p.unwrap_or(plain.min_p),
        repetition_penalty: generation.repetition_penalty.unwrap_or(plain.repetition_penalty),
        max_tokens: generation.max_new_tokens.map(|max| max as u64).or(plain.max_tokens),
        ..plain
    }
}
