//! Rotary position embedding: its base and how it is stretched.

use super::fields::Fields;
use super::{ConfigError, Naming};

const DEFAULT_THETA: f64 = 10_000.0;
const KNOWN: &str = "default, linear, llama3";

/// Rotary position embedding (Su et al., RoFormer).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched to longer contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for contexts longer than the training's.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// As Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp in between.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The training's context length.
        original_max_position: usize,
    },
    /// Each frequency divided by its own factor: how GGUF files store what a converter worked out.
    Factors(Vec<f32>),
}

impl Default for RopeConfig {
    fn default() -> Self {
        Self { theta: DEFAULT_THETA, scaling: RopeScaling::None }
    }
}

impl RopeConfig {
    /// From `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters` holding both.
    pub(super) fn from_json(config: Fields<'_>) -> Result<Self, ConfigError> {
        let together = config.object("rope_parameters")?;
        let theta = match together.map(|fields| fields.number("rope_theta")).transpose()?.flatten() {
            Some(theta) => theta,
            None => config.number("rope_theta")?.unwrap_or(DEFAULT_THETA),
        };
        let scaling = match together {
            Some(fields) => Some(fields),
            None => config.object("rope_scaling")?,
        };
        Ok(Self {
            theta,
            scaling: scaling.map(RopeScaling::from_json).transpose()?.unwrap_or(RopeScaling::None),
        })
    }

    pub(super) fn validate(&self, head_dim: usize, name: Naming<'_>) -> Result<(), ConfigError> {
        if !(self.theta.is_finite() && self.theta > 1.0) {
            return Err(ConfigError::number(&name("rope_theta"), "a number above 1", self.theta));
        }
        self.scaling.validate(head_dim, name)
    }
}

impl RopeScaling {
    fn from_json(fields: Fields<'_>) -> Result<Self, ConfigError> {
        // `type` is the older name.
        let key = if fields.find("rope_type").is_some() { "rope_type" } else { "type" };
        match fields.string(key)?.unwrap_or("default") {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear { factor: fields.required_number("factor")? }),
            "llama3" => Ok(Self::Llama3 {
                factor: fields.required_number("factor")?,
                low_freq_factor: fields.required_number("low_freq_factor")?,
                high_freq_factor: fields.required_number("high_freq_factor")?,
                original_max_position: fields.required_size("original_max_position_embeddings")?,
            }),
            given => Err(ConfigError::RopeScaling {
                field: fields.path(key),
                given: given.to_owned(),
                known: KNOWN,
            }),
        }
    }

    /// From the metadata of a GGUF file, where `kind` may be left out.
    pub(super) fn from_gguf(field: String, kind: &str, factor: Option<f64>) -> Result<Self, ConfigError> {
        match (kind, factor) {
            ("none", _) | ("linear", None) => Ok(Self::None),
            ("linear", Some(factor)) => Ok(Self::Linear { factor }),
            (given, _) => {
                Err(ConfigError::RopeScaling { field, given: given.to_owned(), known: "none, linear" })
            }
        }
    }

    fn validate(&self, head_dim: usize, name: Naming<'_>) -> Result<(), ConfigError> {
        let positive = |field: &str, given: f64| {
            if given.is_finite() && given > 0.0 {
                Ok(())
            } else {
                Err(ConfigError::number(&name(field), "a number above 0", given))
            }
        };
        match self {
            Self::None => Ok(()),
            Self::Linear { factor } => positive("rope_scaling.factor", *factor),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                positive("rope_scaling.factor", *factor)?;
                positive("rope_scaling.low_freq_factor", *low_freq_factor)?;
                positive("rope_scaling.original_max_position_embeddings", *original_max_position as f64)?;
                positive(
                    "rope_scaling.high_freq_factor - low_freq_factor",
                    high_freq_factor - low_freq_factor,
                )
            }
            Self::Factors(factors) => {
                factors.iter().try_for_each(|&factor| positive("rope_freqs.weight", factor.into()))?;
                if factors.len() == head_dim / 2 {
                    return Ok(());
                }
                Err(ConfigError::Unsupported {
                    field: "rope_freqs.weight".to_owned(),
                    given: format!("{} factors", factors.len()),
                    expected: format!("head_dim / 2 = {}", head_dim / 2),
                })
            }
        }
    }
}
