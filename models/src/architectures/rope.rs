//! Tables of rotary position embedding.

use std::f64::consts::TAU;
use std::sync::Arc;

use quire_kernels::{DType, Kernels, RopeStyle, RopeTable};

use crate::config::{ModelConfig, RopeConfig, RopeScaling};
use crate::error::Result;
use crate::parallel;

/// Positions that a thread works out in one go.
const ROWS: usize = 256;

/// The tables of a model: layers with a window may have their own.
#[derive(Debug)]
pub struct RopeTables {
    full: Arc<RopeTable>,
    local: Option<Arc<RopeTable>>,
}

impl RopeTables {
    /// The tables of `config` for positions `0..max_positions`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(kernels: &Kernels, config: &ModelConfig, max_positions: usize) -> Result<Self> {
        let table = |rope: &RopeConfig| rope_table(kernels, rope, max_positions).map(Arc::new);
        Ok(Self { full: table(&config.rope)?, local: config.local_rope.as_ref().map(table).transpose()? })
    }

    /// That of a layer.
    pub fn of(&self, layer: usize, config: &ModelConfig) -> &Arc<RopeTable> {
        self.local.as_ref().filter(|_| config.window(layer).is_some()).unwrap_or(&self.full)
    }

    /// Device memory.
    pub fn num_bytes(&self) -> usize {
        [&self.full].into_iter().chain(&self.local).map(|table| table.cos_sin.span_bytes()).sum()
    }

    /// What [`num_bytes`](Self::num_bytes) will be.
    pub fn planned_bytes(config: &ModelConfig, max_positions: usize) -> usize {
        let ropes = [&config.rope].into_iter().chain(&config.local_rope);
        ropes.map(|rope| size_of::<f32>() * max_positions * rope.rotary_dim).sum()
    }
}

/// The cosines and sines of positions `0..max_positions`, on the device.
///
/// # Errors
/// The device is out of memory.
pub fn rope_table(kernels: &Kernels, rope: &RopeConfig, max_positions: usize) -> Result<RopeTable> {
    let values = rope_values(rope, max_positions);
    let cos_sin = kernels.upload(DType::F32, &[max_positions, rope.rotary_dim], &values)?;
    Ok(RopeTable { cos_sin, style: RopeStyle::Halves })
}

/// `[max_positions, rotary_dim]`: the cosines of a position, then its sines. Angles are worked out in double precision, so
/// that the last positions of a long context are as exact as the first.
pub fn rope_values(rope: &RopeConfig, max_positions: usize) -> Vec<f32> {
    let magnitude = magnitude(rope);
    let (all, row_len) = (frequencies(rope, max_positions), 2 * (rope.rotary_dim / 2));
    let mut values = vec![0.0; max_positions * row_len];
    let grown = |position: usize| match rope.scaling {
        RopeScaling::Dynamic { factor, original_max_position } if position >= original_max_position => {
            Some(grown(rope, factor, original_max_position, position + 1))
        }
        _ => None,
    };
    parallel::for_each_chunk(&mut values, ROWS * row_len.max(1), |at, rows| {
        for (row, position) in rows.chunks_exact_mut(row_len).zip(at * ROWS..) {
            write_row(row, position, magnitude, grown(position).as_deref().unwrap_or(&all));
        }
    });
    values
}

fn write_row(row: &mut [f32], position: usize, magnitude: f64, frequencies: &[f64]) {
    let (cosines, sines) = row.split_at_mut(frequencies.len());
    for ((cos_out, sin_out), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
        // Both at once: they share the reduction of the angle.
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        (*cos_out, *sin_out) = ((magnitude * cos) as f32, (magnitude * sin) as f32);
    }
}

/// What cosines and sines are multiplied with, so that attention over long contexts stays as sharp.
fn magnitude(rope: &RopeConfig) -> f64 {
    match rope.scaling {
        RopeScaling::Yarn { magnitude, .. } | RopeScaling::LongRope { magnitude, .. } => magnitude,
        _ => 1.0,
    }
}

/// Radians a position turns each pair by: `theta^(-2i / rotary_dim)` (Su et al., RoFormer, 2021), scaled for texts of up to
/// `max_positions`.
fn frequencies(rope: &RopeConfig, max_positions: usize) -> Vec<f64> {
    let plain = plain(rope.theta, rope.rotary_dim);
    match &rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
        RopeScaling::Yarn { factor, .. } => {
            let (start, end) = yarn_ramp(rope);
            let kept = |pair: usize| 1.0 - ((pair as f64 - start) / (end - start)).clamp(0.0, 1.0);
            plain.enumerate().map(|(pair, frequency)| blend(kept(pair), frequency, *factor)).collect()
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let original = *original_max_position as f64;
            plain
                .map(|frequency| {
                    // Turns in the original context: few are stretched, many are kept.
                    let turns = original * frequency / TAU;
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    blend(kept.clamp(0.0, 1.0), frequency, *factor)
                })
                .collect()
        }
        RopeScaling::LongRope { short, long, original_max_position, .. } => {
            let factors = if max_positions > *original_max_position { long } else { short };
            plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect()
        }
        RopeScaling::Factors(factors) => {
            plain.zip(factors).map(|(frequency, &factor)| frequency / f64::from(factor)).collect()
        }
    }
}

fn plain(theta: f64, rotary_dim: usize) -> impl Iterator<Item = f64> {
    (0..rotary_dim / 2).map(move |pair| theta.powf(-2.0 * pair as f64 / rotary_dim as f64))
}

/// A share of a frequency as it is, the rest of it divided.
fn blend(kept: f64, frequency: f64, factor: f64) -> f64 {
    kept * frequency + (1.0 - kept) * frequency / factor
}

/// The frequencies of a text of `num_tokens`, more than the training's context.
fn grown(rope: &RopeConfig, factor: f64, original_max_position: usize, num_tokens: usize) -> Vec<f64> {
    let stretch = factor * num_tokens as f64 / original_max_position as f64 - (factor - 1.0);
    let dim = rope.rotary_dim as f64;
    plain(rope.theta * stretch.powf(dim / (dim - 2.0)), rope.rotary_dim).collect()
}

/// The pairs between which frequencies go from kept to divided.
fn yarn_ramp(rope: &RopeConfig) -> (f64, f64) {
    let RopeScaling::Yarn { original_max_position, beta_fast, beta_slow, truncate, .. } = rope.scaling else {
        return (0.0, 1.0);
    };
    let dim = rope.rotary_dim as f64;
    // The pair that turns so often in the training's context.
    let pair =
        |turns: f64| dim * (original_max_position as f64 / (turns * TAU)).ln() / (2.0 * rope.theta.ln());
    let (start, end) = (pair(beta_fast), pair(beta_slow));
    let (start, end) = if truncate { (start.floor(), end.ceil()) } else { (start, end) };
    let (start, end) = (start.max(0.0), end.min(dim - 1.0));
    // A step is a steep ramp.
    (start, if start == end { end + 0.001 } else { end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scaling: RopeScaling, expected: [f64; 4]) {
        let rope = RopeConfig { scaling, ..RopeConfig::plain(10_000.0, 8) };
        for (given, expected) in frequencies(&rope, 100).iter().zip(expected) {
            assert!((given / expected - 1.0).abs() < 1e-12, "{given} is not {expected}");
        }
    }

    #[test]
    fn plain_frequencies_fall_by_powers_of_the_base() {
        check(RopeScaling::None, [1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        check(RopeScaling::Linear { factor: 4.0 }, [0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 1024,
        };
        // Wavelengths 6.28, 62.8, 628 and 6283: kept below 256, divided above 1024, a ramp in between.
        let kept = (1024.0 / (TAU * 100.0) - 1.0) / 3.0;
        check(scaling, [1.0, 0.1, kept * 0.01 + (1.0 - kept) * 0.01 / 8.0, 0.001 / 8.0]);
    }

    #[test]
    fn stored_factors_divide_their_own_frequency() {
        check(RopeScaling::Factors(vec![1.0, 1.0, 2.0, 8.0]), [1.0, 0.1, 0.005, 0.000125]);
    }

    #[test]
    fn the_longest_text_decides_which_factors_hold() {
        let scaling = |original_max_position| RopeScaling::LongRope {
            short: vec![1.0; 4],
            long: vec![2.0; 4],
            original_max_position,
            magnitude: 1.0,
        };
        check(scaling(100), [1.0, 0.1, 0.01, 0.001]);
        check(scaling(99), [0.5, 0.05, 0.005, 0.0005]);
    }

    #[test]
    fn a_table_row_is_cosines_then_sines() {
        // Frequencies 1 and 1/2.
        let table = rope_values(&RopeConfig::plain(4.0, 4), 3);
        let expected = [2f64.cos(), 1f64.cos(), 2f64.sin(), 1f64.sin()].map(|value| value as f32);
        assert_eq!(table[8..12], expected);
        assert_eq!(table[..4], [1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_dynamic_base_grows_with_the_position_alone() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, original_max_position: 8 };
        let rope = RopeConfig { scaling, ..RopeConfig::plain(10_000.0, 8) };
        let (short, long) = (rope_values(&rope, 12), rope_values(&rope, 40));
        assert_eq!(short, long[..short.len()]);
        let plain = rope_values(&RopeConfig::plain(10_000.0, 8), 40);
        assert_eq!(long[..64], plain[..64]);
        assert_ne!(long[64..72], plain[64..72]);
    }
}
