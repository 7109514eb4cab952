//! Activations in 8 bits: what quantized weights are multiplied with.
//!
//! A block of 32 values becomes 32 signed bytes and a scale, `value ≈ scale · quant`, with the largest value at
//! ±127. So that products with weights are sums of integers, exact in any order, and a layer's result depends
//! on nothing but the row itself.

use bytemuck::{Pod, Zeroable};

use crate::lanes::{LANES, Simd};

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

impl QuantBlock {
    /// Quantizes 32 values. A block with a value that is not finite gets a scale that is not finite either.
    #[inline(always)]
    pub(crate) fn quantize<S: Simd>(s: S, values: &[f32; BLOCK_LEN]) -> Self {
        let (halves, _) = values.as_chunks::<LANES>();
        let (first, last) = (s.load(&halves[0]), s.load(&halves[1]));
        let largest = largest_magnitude(s, first, last);
        // A block of zeros has quants of zero; so has one of values so small that they have no inverse.
        let inverse = if largest < SMALLEST { 0.0 } else { 127.0 / largest };
        let first = s.to_i8(s.mul(first, s.splat(inverse)));
        let last = s.to_i8(s.mul(last, s.splat(inverse)));
        let sums = [s.sum_i8(first), s.sum_i8(last)];
        let scale = largest / 127.0;
        let scaled_sum = scale * (sums[0] + sums[1]) as f32;
        Self { quants: bytemuck::cast([first, last]), scale, scaled_sum, sums }
    }

    /// Quantizes a row whose length is a multiple of 32.
    ///
    /// # Panics
    ///
    /// Where `out` has not a block for every 32 values.
    #[inline(always)]
    pub(crate) fn quantize_row<S: Simd>(s: S, values: &[f32], out: &mut [Self]) {
        let (blocks, rest) = values.as_chunks::<BLOCK_LEN>();
        assert!(rest.is_empty() && blocks.len() == out.len(), "a quantized block for every 32 values");
        for (values, block) in blocks.iter().zip(out) {
            *block = Self::quantize(s, values);
        }
    }
}

/// Below this, 127 divided by it overflows.
const SMALLEST: f32 = 1e-36;

/// The largest magnitude in two vectors; NaN where there is one.
#[inline(always)]
fn largest_magnitude<S: Simd>(s: S, first: S::V, last: S::V) -> f32 {
    let zero = s.zero();
    let (first, last) = (s.max(first, s.sub(zero, first)), s.max(last, s.sub(zero, last)));
    let is_number = s.ge(first, zero) & s.ge(last, zero);
    if is_number == u16::MAX { s.largest(s.max(first, last)) } else { f32::NAN }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Isa;
    use crate::lanes::{Program, run};

    struct Quantize<'a>(&'a [f32; BLOCK_LEN]);

    impl Program for Quantize<'_> {
        type Output = QuantBlock;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> QuantBlock {
            QuantBlock::quantize(s, self.0)
        }
    }

    /// The block, after a look whether all instruction sets agree on it.
    pub(in crate::linear) fn quantize(values: &[f32; BLOCK_LEN]) -> QuantBlock {
        let block = run(Isa::Scalar, Quantize(values));
        for isa in Isa::available() {
            let other = run(isa, Quantize(values));
            assert!(!block.scale.is_finite() || other == block, "{isa}: {other:?}, not {block:?}");
        }
        block
    }

    #[test]
    fn quants_are_the_nearest_ones_and_the_sums_are_theirs() {
        let values: [f32; BLOCK_LEN] = std::array::from_fn(|i| (i as f32 - 11.0) * 0.3);
        let block = quantize(&values);
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
            let block = quantize(&values);
            assert!(block.scale.is_finite() && block.scaled_sum.is_finite(), "{magnitude}: {block:?}");
            assert!(block.quants.as_flattened().iter().all(|&q| q != i8::MIN));
            let error = (f32::from(block.quants[0][3]) * block.scale - magnitude).abs();
            assert!(error <= magnitude * 1e-6 || magnitude < SMALLEST, "{magnitude}: {block:?}");
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_not_hidden() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 7, 31] {
                let mut values = [1.0; BLOCK_LEN];
                values[place] = bad;
                assert!(!quantize(&values).scale.is_finite());
            }
        }
    }
}
