//! How the model's makers would have it sampled.

use quire_models::{Checkpoint, GenerationConfig};

use crate::checked::{MAX_TEMPERATURE, ParamLimits};
use crate::config::{EngineConfig, generation_override};
use crate::params::ParamError;
use crate::{ConfigError, SamplingParams};

/// What requests are sampled with where they do not say: what the setting says, then what the makers would have. Defaults of
/// the makers that no request may have are warned of.
///
/// # Errors
///
/// The setting has a value that no request may have.
pub(super) fn default_params(
    config: &EngineConfig,
    checkpoint: &Checkpoint,
) -> Result<SamplingParams, ConfigError> {
    let makers = if config.generation_config == "auto" {
        defaults_of_makers(checkpoint)
    } else {
        GenerationConfig::default()
    };
    let Some(text) = config.override_generation_config.as_deref() else { return Ok(params_of(&makers)) };
    let given = generation_override::parse(text)?;
    let params = params_of(&GenerationConfig {
        temperature: given.temperature.or(makers.temperature),
        top_p: given.top_p.or(makers.top_p),
        top_k: given.top_k.or(makers.top_k),
        min_p: given.min_p.or(makers.min_p),
        repetition_penalty: given.repetition_penalty.or(makers.repetition_penalty),
        max_new_tokens: given.max_new_tokens.or(makers.max_new_tokens),
        ..makers
    });
    let refuse = |fault: ParamError| generation_override::refused(text, &fault.to_string());
    params.check(&any_vocabulary()).map_err(refuse)?;
    Ok(params)
}

fn defaults_of_makers(checkpoint: &Checkpoint) -> GenerationConfig {
    let (usable, unusable) = usable_defaults(checkpoint.generation());
    let file = checkpoint.path().join("generation_config.json");
    unusable
        .iter()
        .for_each(|message| tracing::warn!(target: "quire::engine", "{}: {message}", file.display()));
    usable
}

/// None of the settings speaks of tokens or log-probabilities.
fn any_vocabulary() -> ParamLimits {
    ParamLimits { vocab_size: usize::MAX, ..ParamLimits::default() }
}

/// The makers' defaults as far as requests may have them, and what became of the others, each by itself: a temperature that
/// is too high is the highest, others are none.
pub(crate) fn usable_defaults(generation: &GenerationConfig) -> (GenerationConfig, Vec<String>) {
    let (mut usable, mut unusable) = (generation.clone(), Vec::new());
    if let Some(given) = usable.temperature.filter(|given| *given > MAX_TEMPERATURE) {
        usable.temperature = Some(MAX_TEMPERATURE);
        unusable
            .push(format!("temperature is {given}: requests get {MAX_TEMPERATURE}, the highest there is"));
    }
    let none = GenerationConfig::default;
    let of_others = [
        drop_unusable(&mut usable.temperature, |temperature| GenerationConfig { temperature, ..none() }),
        drop_unusable(&mut usable.top_p, |top_p| GenerationConfig { top_p, ..none() }),
        drop_unusable(&mut usable.top_k, |top_k| GenerationConfig { top_k, ..none() }),
        drop_unusable(&mut usable.min_p, |min_p| GenerationConfig { min_p, ..none() }),
        drop_unusable(&mut usable.repetition_penalty, |repetition_penalty| GenerationConfig {
            repetition_penalty,
            ..none()
        }),
        drop_unusable(&mut usable.max_new_tokens, |max_new_tokens| GenerationConfig {
            max_new_tokens,
            ..none()
        }),
    ];
    unusable.extend(of_others.into_iter().flatten());
    (usable, unusable)
}

/// Takes away a value that no request may have, and says so; `alone` makes settings of it and nothing else.
fn drop_unusable<T: Copy>(
    value: &mut Option<T>,
    alone: impl Fn(Option<T>) -> GenerationConfig,
) -> Option<String> {
    let fault = params_of(&alone(*value)).check(&any_vocabulary()).err()?;
    *value = None;
    Some(format!("{fault}: not used as a default"))
}

fn params_of(generation: &GenerationConfig) -> SamplingParams {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_request_may_have_is_no_default_and_the_rest_is() {
        let given = GenerationConfig {
            temperature: Some(100.0),
            top_p: Some(2.0),
            top_k: Some(40),
            repetition_penalty: Some(0.0),
            max_new_tokens: Some(0),
            ..GenerationConfig::default()
        };
        let (usable, unusable) = usable_defaults(&given);
        let expected =
            GenerationConfig { temperature: Some(2.0), top_k: Some(40), ..GenerationConfig::default() };
        assert_eq!(usable, expected);
        let said = ["temperature is 100", "top_p is 2", "repetition_penalty is 0", "max_tokens is 0"];
        assert!(unusable.iter().zip(said).all(|(message, says)| message.contains(says)), "{unusable:?}");
        assert_eq!(unusable.len(), said.len());
        assert_eq!(usable_defaults(&usable), (expected, Vec::new()));
    }
}
