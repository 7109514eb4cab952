//! What the configuration, the model and the backend must agree on before memory is planned.

use quire_kernels::Kernels;
use quire_models::{Checkpoint, WeightSummary};

use crate::ConfigError;
use crate::config::{EngineConfig, SettingValue};

/// A backend need not have a kernel for each dtype that files have.
pub(super) fn check_dtypes(weights: &WeightSummary, kernels: &Kernels) -> Result<(), quire_models::Error> {
    let linear = kernels.linear();
    let plain = weights.matrix_dtypes.iter().find(|dtype| !linear.supports(**dtype));
    let scaled = weights.scaled_dtypes.iter().find(|dtype| !linear.supports_scaled(**dtype));
    let unsupported = plain.map(|dtype| format!("weights in {dtype}"));
    let unsupported = unsupported.or_else(|| scaled.map(|dtype| format!("weights in {dtype} with scales")));
    unsupported.map_or(Ok(()), |what| {
        let backend = kernels.device().info().backend.clone();
        Err(quire_kernels::Error::Unsupported { backend, part: "linear", what }.into())
    })
}

/// Whoever names a quantization means it: the model must have it, or be dense where it can be made.
pub(super) fn check_quantization(config: &EngineConfig, checkpoint: &Checkpoint) -> Result<(), ConfigError> {
    let (asked, stored) = (config.quantization.as_deref(), checkpoint.quantization());
    match asked {
        Some(asked) if stored != Some(asked) && (asked != "fp8" || stored.is_some()) => {
            Err(ConfigError::Value {
                field: "quantization",
                given: asked.to_owned(),
                expected: match stored {
                    Some(stored) => format!("{stored}, which the model has"),
                    None => "fp8, or none: the model is not quantized".to_owned(),
                },
            })
        }
        _ => Ok(()),
    }
}

/// There are no more log-probabilities at a token than tokens, nor more than the backend finds.
pub(super) fn check_max_logprobs(
    config: &EngineConfig,
    vocab_size: usize,
    kernels: &Kernels,
) -> Result<(), ConfigError> {
    let given = config.max_logprobs;
    let refuse = |expected| Err(ConfigError::Value { field: "max_logprobs", given: given.show(), expected });
    let num_found = kernels.sampling().max_top_logprobs(vocab_size);
    match given.of(vocab_size) {
        more if more > vocab_size => refuse(format!("0 to the size of the vocabulary, {vocab_size}, or -1")),
        more if more > num_found => refuse(format!("at most {num_found}, which this backend finds")),
        _ => Ok(()),
    }
}
