//! Rotary embeddings in a GGUF file.

use super::super::{ConfigError, RopeConfig, RopeScaling, STAND_IN_SIZE};
use super::Sizes;
use super::keys::Keys;
use crate::error::Error;

/// Factors of rotary frequencies that a converter worked out.
const ROPE_FACTORS: &str = "rope_freqs.weight";
const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// Tensors that are read into the configuration.
pub(crate) const ROPE_TENSORS: [&str; 3] = [ROPE_FACTORS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG];

/// Base of the rotary frequencies in Gemma 3's layers with a window, where the file does not say it.
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;

impl Sizes {
    /// The rotary embedding of all layers, and that of layers with a window where they have their own. Nothing can be said of
    /// numbers that should fit what is not known.
    pub(super) fn ropes(&self, keys: &Keys<'_>) -> (RopeConfig, Option<RopeConfig>) {
        let given_dim = keys.find_size("rope.dimension_count").filter(|_| self.head_dim.is_some());
        let theta = keys.float("rope.freq_base").unwrap_or(10_000.0);
        let mut rope = RopeConfig::plain(theta, given_dim.unwrap_or(self.head_dim()));
        let local = (keys.prefix() == "gemma3").then(|| {
            let theta = keys.float("rope.freq_base_swa").unwrap_or(GEMMA3_LOCAL_THETA);
            RopeConfig { theta, ..rope.clone() }
        });
        let scaling = keys.rope_scaling(self.max_position.unwrap_or(STAND_IN_SIZE));
        if self.head_dim.is_some() && self.max_position.is_some() {
            rope.scaling = scaling.unwrap_or(RopeScaling::None);
        }
        (rope, local)
    }
}

impl Keys<'_> {
    /// `None`, with a fault, where it cannot be read.
    fn rope_scaling(&self, max_position: usize) -> Option<RopeScaling> {
        if let Some(factors) = self.factors(ROPE_FACTORS) {
            return Some(RopeScaling::Factors(factors));
        }
        let length = self.find_size("rope.scaling.original_context_length");
        let original_max_position = length.unwrap_or(max_position);
        let magnitude = self.float("rope.scaling.attn_factor").unwrap_or(1.0);
        let lists = [ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].map(|name| self.factors(name));
        if let [Some(short), Some(long)] = lists {
            let [short, long] = [short, long].map(|factors| factors.into_iter().map(f64::from).collect());
            return Some(RopeScaling::LongRope { short, long, original_max_position, magnitude });
        }
        let kind = self.string("rope.scaling.type");
        let factor = self.float("rope.scaling.factor").or_else(|| self.float("rope.scale_linear"));
        match (kind.unwrap_or("linear"), factor) {
            ("none", _) | ("linear", None) => Some(RopeScaling::None),
            ("linear", Some(factor)) => Some(RopeScaling::Linear { factor }),
            ("yarn", Some(factor)) => Some(RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast: self.float("rope.scaling.yarn_beta_fast").unwrap_or(32.0),
                beta_slow: self.float("rope.scaling.yarn_beta_slow").unwrap_or(1.0),
                truncate: true,
                magnitude: magnitude * (1.0 + 0.1 * factor.max(1.0).ln()),
            }),
            (given, _) => {
                self.faults().add(ConfigError::RopeScaling {
                    field: self.key("rope.scaling.type"),
                    given: given.to_owned(),
                    known: "none, linear, yarn; longrope with its tensors",
                });
                None
            }
        }
    }

    /// A vector of float32 that a converter worked out.
    fn factors(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if tensor.dtype() != quire_kernels::DType::F32 {
            self.add(Error::TensorDType {
                tensor: tensor.name().to_owned(),
                path: self.file().path().to_owned(),
                given: tensor.dtype().to_string(),
                expected: "f32".to_owned(),
            });
            return None;
        }
        let bytes = self.file().bytes(tensor).expect("a parsed tensor lies inside its file");
        let factors =
            bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().expect("four bytes")));
        Some(factors.collect())
    }
}
