//! Tables of rotary position embedding.

use std::f64::consts::TAU;

use quire_kernels::{DType, Kernels, RopeStyle, RopeTable};

use crate::config::{RopeConfig, RopeScaling};
use crate::error::Result;

/// The cosines and sines of positions `0..max_positions`, on the device.
///
/// # Errors
/// The device is out of memory.
pub fn rope_table(
    kernels: &Kernels,
    rope: &RopeConfig,
    head_dim: usize,
    max_positions: usize,
) -> Result<RopeTable> {
    let values = cos_sin(&inverse_frequencies(rope, head_dim), max_positions);
    let cos_sin = kernels.upload(DType::F32, &[max_positions, head_dim], &values)?;
    Ok(RopeTable { cos_sin, style: RopeStyle::Halves })
}

/// Radians a position turns each pair by: `theta^(-2i / head_dim)` (Su et al., RoFormer, 2021), scaled.
pub fn inverse_frequencies(rope: &RopeConfig, head_dim: usize) -> Vec<f64> {
    let plain = (0..head_dim / 2).map(|pair| rope.theta.powf(-2.0 * pair as f64 / head_dim as f64));
    match &rope.scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let original = *original_max_position as f64;
            plain
                .map(|frequency| {
                    // Turns in the original context: few are stretched, many are kept.
                    let turns = original * frequency / TAU;
                    let kept =
                        ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    kept * frequency + (1.0 - kept) * frequency / factor
                })
                .collect()
        }
        RopeScaling::Factors(factors) => {
            plain.zip(factors).map(|(frequency, &factor)| frequency / f64::from(factor)).collect()
        }
    }
}

/// `[max_positions, 2 * frequencies.len()]`: the cosines of a position, then its sines. Angles are worked
/// out in double precision, so that the last positions of a long context are as exact as the first.
fn cos_sin(frequencies: &[f64], max_positions: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(max_positions * 2 * frequencies.len());
    for position in 0..max_positions {
        let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
        values.extend(angles.clone().map(|angle| angle.cos() as f32));
        values.extend(angles.map(|angle| angle.sin() as f32));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scaling: RopeScaling, expected: [f64; 4]) {
        let given = inverse_frequencies(&RopeConfig { theta: 10_000.0, scaling }, 8);
        for (given, expected) in given.iter().zip(expected) {
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
    fn a_table_row_is_cosines_then_sines() {
        let table = cos_sin(&[1.0, 0.5], 3);
        let expected = [2f64.cos(), 1f64.cos(), 2f64.sin(), 1f64.sin()].map(|value| value as f32);
        assert_eq!(table[8..12], expected);
        assert_eq!(table[..4], [1.0, 1.0, 0.0, 0.0]);
    }
}
