//! Activations in 8 bits: what quantized weights are multiplied with.
//!
//! A block of 32 values becomes 32 signed bytes and a scale, `value ≈ scale · quant`, with the largest value at
//! ±127. So that products with weights are sums of integers, exact in any order, and a layer's result depends
//! on nothing but the row itself.

use bytemuck::{Pod, Zeroable};

/// Values that share a scale.
pub(crate) const BLOCK_LEN: usize = 32;

/// 32 quantized values of an activation row, and the sums that weights with an offset need.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct QuantBlock {
    /// From -127 to 127, in quads.
    pub(crate) quants: [[i8; 4]; BLOCK_LEN / 4],
    /// Value of a quantum.
    pub(crate) scale: f32,
    /// `scale` times the sum of all quants.
    pub(crate) scaled_sum: f32,
    /// Sums of the first and of the last 16 quants.
    pub(crate) sums: [i32; 2],
}

/// Bytes of a [`QuantBlock`].
pub(crate) const BLOCK_BYTES: usize = size_of::<QuantBlock>();

/// Adding this rounds a number of small magnitude to an integer, ties to even, and leaves the integer in the low
/// bits: at 1.5 · 2^23 neighbouring floats are one apart.
const ROUNDER: f32 = 12_582_912.0;

impl QuantBlock {
    /// Quantizes 32 values. A block with a value that is not finite gets a scale that is not finite either.
    ///
    /// Branch-free and in one order, to be inlined where the instruction set is chosen; equal on all of them.
    #[inline(always)]
    pub(crate) fn quantize(values: &[f32; BLOCK_LEN]) -> Self {
        // Magnitudes order like their bit patterns, NaN above all.
        let largest = values.iter().fold(0, |a, v| a.max(v.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let scale = largest / 127.0;
        // A block of zeros (or of what is as good as zero) has quants of zero: see the test.
        let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
        let quants = values.map(|v| (v * inverse + ROUNDER).to_bits() as i8);
        let sum = |quants: &[i8]| quants.iter().map(|&q| i32::from(q)).sum::<i32>();
        let sums = [sum(&quants[..16]), sum(&quants[16..])];
        let scaled_sum = scale * (sums[0] + sums[1]) as f32;
        Self { quants: bytemuck::cast(quants), scale, scaled_sum, sums }
    }

    /// Quantizes a row whose length is a multiple of 32.
    ///
    /// # Panics
    ///
    /// Where `out` has not a block for every 32 values.
    #[inline(always)]
    pub(crate) fn quantize_row(values: &[f32], out: &mut [Self]) {
        let (blocks, rest) = values.as_chunks::<BLOCK_LEN>();
        assert!(rest.is_empty() && blocks.len() == out.len(), "a quantized block for every 32 values");
        for (values, block) in blocks.iter().zip(out) {
            *block = Self::quantize(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quants_are_the_nearest_ones_and_the_sums_are_theirs() {
        let values: [f32; BLOCK_LEN] = std::array::from_fn(|i| (i as f32 - 11.0) * 0.3);
        let block = QuantBlock::quantize(&values);
        assert_eq!(block.scale, 6.0 / 127.0);
        for (q, v) in block.quants.as_flattened().iter().zip(&values) {
            assert!((f32::from(*q) * block.scale - v).abs() <= block.scale * 0.5001, "{v} as {q}");
        }
        let sum: i32 = block.quants.as_flattened().iter().map(|&q| i32::from(q)).sum();
        assert_eq!(block.sums[0] + block.sums[1], sum);
        assert_eq!(block.scaled_sum, block.scale * sum as f32);
    }

    #[test]
    fn extreme_values_stay_in_range() {
        for magnitude in [0.0, 1e-45, 1e-40, 1e-38, 1.0, 1e36] {
            let mut values = [-magnitude; BLOCK_LEN];
            values[3] = magnitude;
            let block = QuantBlock::quantize(&values);
            assert!(block.scale.is_finite() && block.scaled_sum.is_finite(), "{magnitude}: {block:?}");
            assert!(block.quants.as_flattened().iter().all(|&q| q != i8::MIN));
            let error = (f32::from(block.quants[0][3]) * block.scale - magnitude).abs();
            assert!(error <= magnitude * 1e-6 || magnitude < 1e-36, "{magnitude}: {block:?}");
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_not_hidden() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; BLOCK_LEN];
            values[7] = bad;
            assert!(!QuantBlock::quantize(&values).scale.is_finite());
        }
    }
}
