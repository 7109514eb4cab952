//! How the model's makers would have it sampled.

use quire_models::{Checkpoint, GenerationConfig};

use crate::checked::ParamLimits;
use crate::config::EngineConfig;
use crate::{ConfigError, SamplingParams};

/// What no request could be sampled with is told with the file that says so.
pub(super) fn check_generation(config: &EngineConfig, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
    if config.generation_config != "auto" {
        return Ok(());
    }
    match &generation_faults(checkpoint.generation())[..] {
        [] => Ok(()),
        faults => Err(ConfigError::Generation {
            file: checkpoint.path().join("generation_config.json").display().to_string(),
            message: faults.join("; "),
        }),
    }
}

/// What is wrong with the makers' defaults, each by itself.
pub(crate) fn generation_faults(generation: &GenerationConfig) -> Vec<String> {
    // None of the settings speaks of tokens or log-probabilities.
    let limits = ParamLimits { vocab_size: usize::MAX, ..ParamLimits::default() };
    let GenerationConfig { temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens, .. } =
        *generation;
    let none = GenerationConfig::default;
    let each = [
        GenerationConfig { temperature, ..none() },
        GenerationConfig { top_p, ..none() },
        GenerationConfig { top_k, ..none() },
        GenerationConfig { min_p, ..none() },
        GenerationConfig { repetition_penalty, ..none() },
        GenerationConfig { max_new_tokens, ..none() },
    ];
    let fault = |one: &GenerationConfig| default_params(one).check(&limits).err();
    each.iter().filter_map(fault).map(|fault| fault.to_string()).collect()
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
