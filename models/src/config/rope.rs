//! Rotary position embedding: its base and how it is stretched.

use super::faults::Faults;
use super::fields::Fields;
use super::{ConfigError, MAX_CONTEXT, Naming};

const DEFAULT_THETA: f64 = 10_000.0;
const KNOWN: &str = "default, linear, dynamic, yarn, llama3, longrope";

/// Rotary position embedding (Su et al., RoFormer).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements of a head that are turned: the first ones. Even.
    pub rotary_dim: usize,
    /// How the frequencies are stretched to longer contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for contexts longer than the training's.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor` (Chen et al., Positional Interpolation, 2023).
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// A base that grows with the context ("dynamic NTK", by bloc97 and emozilla, 2023): position `p` beyond the training's
    /// context is turned as the last one of a text of `p + 1` tokens.
    Dynamic {
        /// At least 1.
        factor: f64,
        /// The training's context length.
        original_max_position: usize,
    },
    /// Short wavelengths kept, long ones divided, a ramp in between (Peng et al., YaRN, 2023).
    Yarn {
        /// At least 1.
        factor: f64,
        /// The training's context length.
        original_max_position: usize,
        /// Frequencies that turn more often in the training's context are kept.
        beta_fast: f64,
        /// Frequencies that turn less often are divided.
        beta_slow: f64,
        /// Whether the ramp starts and ends at whole frequencies.
        truncate: bool,
        /// Multiplies cosines and sines.
        magnitude: f64,
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
    /// Each frequency divided by its own factor, of one list up to the training's context and of another beyond it
    /// (Ding et al., LongRoPE, 2024). Which one holds is decided by the longest text that the model is loaded for.
    LongRope {
        /// For texts within the training's context.
        short: Vec<f64>,
        /// For longer ones.
        long: Vec<f64>,
        /// The training's context length.
        original_max_position: usize,
        /// Multiplies cosines and sines.
        magnitude: f64,
    },
    /// Each frequency divided by its own factor: how GGUF files store what a converter worked out.
    Factors(Vec<f32>),
}

const PARAMETERS: &str = "rope_parameters";
const SCALING: &str = "rope_scaling";
/// Layers without a window and with one.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

/// What scaling is read with beside its own fields.
#[derive(Clone, Copy)]
pub(super) struct RopeContext {
    pub(super) head_dim: usize,
    pub(super) max_position: usize,
    /// The training's context length, where the file has it outside of its rotary parameters.
    pub(super) original_max_position: Option<usize>,
}

impl RopeConfig {
    /// Whole heads, not stretched.
    pub fn plain(theta: f64, rotary_dim: usize) -> Self {
        Self { theta, rotary_dim, scaling: RopeScaling::None }
    }

    /// From `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters` holding both. Where both are there, the
    /// reference takes `rope_scaling`.
    pub(super) fn from_json(config: Fields<'_>, context: RopeContext) -> Self {
        let parameters = config.object(PARAMETERS);
        for kind in KINDS {
            if parameters.is_some_and(|parameters| parameters.find(kind).is_some()) {
                config.refuse(
                    PARAMETERS,
                    format!("one for {kind}"),
                    "one for all layers of this architecture",
                );
            }
        }
        let scaling = config.object(SCALING).filter(|scaling| !scaling.is_empty());
        if let (Some(scaling), Some(parameters)) = (scaling, parameters) {
            check_theta(config, scaling, parameters);
        }
        let chosen = scaling.or(parameters);
        Self::read(config, chosen, [chosen, None], "rope_theta", context)
    }

    /// Those of layers without a window and of layers with one: `rope_parameters` for each kind of layer, or `rope_theta`
    /// and `rope_local_base_freq`. `rope_scaling` goes over what is there for the first.
    pub(super) fn of_kinds(config: Fields<'_>, context: RopeContext) -> (Self, Option<Self>) {
        let parameters = config.object(PARAMETERS);
        let of_kind = |kind, path| parameters.and_then(|kinds| kinds.object_at(kind, path));
        let full = of_kind(KINDS[0], "rope_parameters.full_attention");
        let local = of_kind(KINDS[1], "rope_parameters.sliding_attention");
        let scaling = config.object(SCALING).filter(|scaling| !scaling.is_empty());
        let rope = Self::read(config, scaling.or(full), [scaling, full], "rope_theta", context);
        (rope, Some(Self::read(config, local, [local, None], "rope_local_base_freq", context)))
    }

    /// How it is stretched is said by `scaling`, the rest by the first of `parameters` that says it, or by the top, which has
    /// `theta` for the base.
    fn read(
        config: Fields<'_>,
        scaling: Option<Fields<'_>>,
        parameters: [Option<Fields<'_>>; 2],
        theta: &str,
        context: RopeContext,
    ) -> Self {
        let own =
            |field: &str| parameters.into_iter().flatten().find_map(|parameters| parameters.number(field));
        let theta = own("rope_theta").or_else(|| config.number(theta)).unwrap_or(DEFAULT_THETA);
        let share = own("partial_rotary_factor").or_else(|| config.number("partial_rotary_factor"));
        let mut share = share.unwrap_or(1.0);
        if !(share > 0.0 && share <= 1.0) {
            let expected = "a number above 0 and up to 1";
            config.faults().add(ConfigError::number("partial_rotary_factor", expected, share));
            share = 1.0;
        }
        let rotary_dim = (context.head_dim as f64 * share) as usize;
        let scaling = scaling.map(|fields| RopeScaling::from_json(fields, context));
        Self { theta, rotary_dim, scaling: scaling.unwrap_or(RopeScaling::None) }
    }

    pub(super) fn check(&self, head_dim: usize, name: Naming<'_>, faults: &Faults) {
        if !(self.theta.is_finite() && self.theta > 1.0) {
            faults.add(ConfigError::number(&name("rope_theta"), "a number above 1", self.theta));
        }
        if !self.rotary_dim.is_multiple_of(2) || !(2..=head_dim).contains(&self.rotary_dim) {
            faults.add(ConfigError::Unsupported {
                field: name("partial_rotary_factor"),
                given: format!("{} of {head_dim} elements", self.rotary_dim),
                expected: format!("an even number from 2 to {head_dim}"),
            });
        }
        self.scaling.check(self.rotary_dim, name, faults);
    }
}

impl RopeScaling {
    fn from_json(fields: Fields<'_>, context: RopeContext) -> Self {
        // `type` is the older name.
        let key = if fields.find("rope_type").is_some() { "rope_type" } else { "type" };
        // Where only the model's own length is given, it is the training's.
        let of_parameters = fields.size("original_max_position_embeddings");
        let original_max_position =
            context.original_max_position.or(of_parameters).unwrap_or(context.max_position);
        let factor = |field: &str| fields.required_number(field);
        let read = match fields.string(key).unwrap_or("default") {
            "default" => Some(Self::None),
            "linear" => factor("factor").map(|factor| Self::Linear { factor }),
            "dynamic" => factor("factor")
                .map(|factor| Self::Dynamic { factor, original_max_position: context.max_position }),
            "yarn" => Some(Self::yarn(fields, original_max_position, context)),
            "llama3" => Self::llama3(fields, original_max_position),
            // The first Phi-3 called it `su`, after its inventor.
            "longrope" | "su" => Self::long_rope(fields, original_max_position, context),
            given => {
                let (field, given) = (fields.path(key), given.to_owned());
                fields.faults().add(ConfigError::RopeScaling { field, given, known: KNOWN });
                None
            }
        };
        // What cannot be read has been told.
        read.unwrap_or(Self::None)
    }

    fn llama3(fields: Fields<'_>, original_max_position: usize) -> Option<Self> {
        let [factor, low, high] =
            ["factor", "low_freq_factor", "high_freq_factor"].map(|field| fields.required_number(field));
        Some(Self::Llama3 {
            factor: factor?,
            low_freq_factor: low?,
            high_freq_factor: high?,
            original_max_position,
        })
    }

    fn yarn(fields: Fields<'_>, original_max_position: usize, context: RopeContext) -> Self {
        let factor = fields.number("factor");
        let factor = factor.unwrap_or(context.max_position as f64 / original_max_position as f64);
        let grown = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let magnitude = fields.number("attention_factor");
        let magnitude = magnitude.unwrap_or_else(|| {
            match (positive(fields, "mscale"), positive(fields, "mscale_all_dim")) {
                (Some(scale), Some(all)) => grown(scale) / grown(all),
                _ => grown(1.0),
            }
        });
        Self::Yarn {
            factor,
            original_max_position,
            beta_fast: positive(fields, "beta_fast").unwrap_or(32.0),
            beta_slow: positive(fields, "beta_slow").unwrap_or(1.0),
            truncate: fields.boolean("truncate").unwrap_or(true),
            magnitude,
        }
    }

    fn long_rope(fields: Fields<'_>, original_max_position: usize, context: RopeContext) -> Option<Self> {
        let factor = fields.number("factor");
        let factor = factor.unwrap_or(context.max_position as f64 / original_max_position as f64);
        let grown = || (1.0 + factor.ln() / (original_max_position as f64).ln()).sqrt();
        let magnitude = fields.number("attention_factor");
        let magnitude = magnitude.unwrap_or_else(|| if factor <= 1.0 { 1.0 } else { grown() });
        let [short, long] = ["short_factor", "long_factor"].map(|field| fields.required_numbers(field));
        Some(Self::LongRope { short: short?, long: long?, original_max_position, magnitude })
    }

    fn check(&self, rotary_dim: usize, name: Naming<'_>, faults: &Faults) {
        let positive = |field: &str, given: f64| {
            if !(given.is_finite() && given > 0.0) {
                faults.add(ConfigError::number(&name(field), "a number above 0", given));
            }
        };
        let stretch = |factor: f64, num_tokens: usize| {
            positive("rope_scaling.factor", factor);
            if factor * num_tokens as f64 > MAX_CONTEXT as f64 {
                let expected = "one with which the context is 268435456 tokens at most";
                faults.add(ConfigError::number(&name("rope_scaling.factor"), expected, factor));
            }
        };
        let original = |given: usize| positive("rope_scaling.original_max_position_embeddings", given as f64);
        let each = |field: &str, factors: &[f64]| {
            factors.iter().for_each(|&factor| positive(field, factor));
            faults.take(check_len(&name(field), factors.len(), rotary_dim / 2));
        };
        match self {
            Self::None => {}
            Self::Linear { factor } => stretch(*factor, 0),
            Self::Dynamic { factor, original_max_position } => {
                stretch(*factor, *original_max_position);
                original(*original_max_position);
                // The base grows with a power of `dim / (dim - 2)`.
                if rotary_dim <= 2 {
                    let expected = "at least 4 with dynamic scaling";
                    faults.add(ConfigError::number(&name("head_dim"), expected, rotary_dim));
                }
            }
            Self::Yarn { factor, original_max_position, beta_fast, beta_slow, magnitude, .. } => {
                stretch(*factor, *original_max_position);
                original(*original_max_position);
                positive("rope_scaling.attention_factor", *magnitude);
                positive("rope_scaling.beta_slow", *beta_slow);
                positive("rope_scaling.beta_fast - beta_slow", beta_fast - beta_slow);
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                stretch(*factor, 0);
                positive("rope_scaling.low_freq_factor", *low_freq_factor);
                original(*original_max_position);
                let ramp = high_freq_factor - low_freq_factor;
                positive("rope_scaling.high_freq_factor - low_freq_factor", ramp);
            }
            Self::LongRope { short, long, original_max_position, magnitude } => {
                each("rope_scaling.short_factor", short);
                each("rope_scaling.long_factor", long);
                original(*original_max_position);
                positive("rope_scaling.attention_factor", *magnitude);
            }
            Self::Factors(factors) => {
                let factors: Vec<f64> = factors.iter().map(|&factor| factor.into()).collect();
                each("rope_freqs.weight", &factors);
            }
        }
    }
}

/// Where `rope_scaling` is put beside `rope_parameters`, the reference forgets the base that only those say, and turns by its
/// default: nobody means that.
fn check_theta(config: Fields<'_>, scaling: Fields<'_>, parameters: Fields<'_>) {
    let is_said = scaling.number("rope_theta").or_else(|| config.number("rope_theta")).is_some();
    if let Some(theta) = parameters.number("rope_theta").filter(|&theta| !is_said && theta != DEFAULT_THETA) {
        let given = format!("one beside rope_parameters.rope_theta = {theta}");
        config.refuse(SCALING, given, "one that says rope_theta too, or all of it in rope_parameters");
    }
}

/// A number of which 0 stands for none, as in the reference.
fn positive(fields: Fields<'_>, field: &str) -> Option<f64> {
    fields.number(field).filter(|&number| number != 0.0)
}

fn check_len(field: &str, given: usize, expected: usize) -> Result<(), ConfigError> {
    if given == expected {
        return Ok(());
    }
    Err(ConfigError::Unsupported {
        field: field.to_owned(),
        given: format!("{given} factors"),
        expected: format!("one for each frequency, {expected}"),
    })
}
