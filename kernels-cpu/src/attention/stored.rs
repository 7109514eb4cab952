//! The element types of a cache.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use quire_kernels::convert;

use super::product;
use crate::lanes::{LANES, Simd};

/// An element as the cache stores it.
pub(super) trait Stored: Pod + Send + Sync {
    /// Most queries of a register tile: fewer where a vector has to be decoded into another register first.
    const MAX_QUERIES: usize = 4;

    /// Its value; exact.
    fn decode(self) -> f32;

    /// The nearest element.
    fn encode(value: f32) -> Self;

    /// The values of a vector.
    fn decode_lanes<S: Simd>(s: S, from: &[Self; LANES]) -> S::V;

    /// The nearest elements of a slice.
    #[inline(always)]
    fn encode_all<S: Simd>(_: S, from: &[f32], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::encode(*from);
        }
    }
}

/// An 8-bit float with 4 exponent and 3 mantissa bits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct F8E4M3(u8);

/// An 8-bit float with 5 exponent and 2 mantissa bits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct F8E5M2(u8);

impl Stored for f32 {
    const MAX_QUERIES: usize = product::MAX_QUERIES;

    #[inline(always)]
    fn decode(self) -> f32 {
        self
    }

    #[inline(always)]
    fn encode(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn decode_lanes<S: Simd>(s: S, from: &[Self; LANES]) -> S::V {
        s.load(from)
    }
}

impl Stored for f16 {
    #[inline(always)]
    fn decode(self) -> f32 {
        convert::f16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn encode(value: f32) -> Self {
        Self::from_bits(convert::f32_to_f16(value))
    }

    #[inline(always)]
    fn decode_lanes<S: Simd>(s: S, from: &[Self; LANES]) -> S::V {
        s.load_f16(bytemuck::cast_ref(from))
    }

    #[inline(always)]
    fn encode_all<S: Simd>(s: S, from: &[f32], to: &mut [Self]) {
        for (to, from) in to.chunks_mut(LANES).zip(from.chunks(LANES)) {
            let halves = match from.first_chunk::<LANES>() {
                Some(from) => s.to_f16(s.load(from)),
                None => s.to_f16(s.load_head(from, 0.0)),
            };
            to.copy_from_slice(&bytemuck::cast_slice(&halves)[..to.len()]);
        }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn decode(self) -> f32 {
        convert::bf16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn encode(value: f32) -> Self {
        Self::from_bits(convert::f32_to_bf16(value))
    }

    #[inline(always)]
    fn decode_lanes<S: Simd>(s: S, from: &[Self; LANES]) -> S::V {
        s.load_bf16(bytemuck::cast_ref(from))
    }
}

impl Stored for F8E4M3 {
    #[inline(always)]
    fn decode(self) -> f32 {
        convert::f8e4m3_to_f32(self.0)
    }

    #[inline(always)]
    fn encode(value: f32) -> Self {
        Self(convert::f32_to_f8e4m3(value))
    }

    #[inline(always)]
    fn decode_lanes<S: Simd>(s: S, from: &[Self; LANES]) -> S::V {
        s.load_f8e4m3(bytemuck::cast_ref(from))
    }
}

impl Stored for F8E5M2 {
    #[inline(always)]
    fn decode(self) -> f32 {
        convert::f8e5m2_to_f32(self.0)
    }

    #[inline(always)]
    fn encode(value: f32) -> Self {
        Self(convert::f32_to_f8e5m2(value))
    }

    #[inline(always)]
    fn decode_lanes<S: Simd>(s: S, from: &[Self; LANES]) -> S::V {
        s.load_f8e5m2(bytemuck::cast_ref(from))
    }
}
