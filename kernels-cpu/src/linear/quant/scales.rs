//! How the scales of 16 rows are stored: as exactly as in the file, a lane a row.

use bytemuck::{Pod, Zeroable};
use quire_kernels::convert::f16_to_f32;

use crate::lanes::{LANES, Simd};

/// Sixteen IEEE halves.
pub(super) type Halves = [u16; LANES];

/// The scales of some blocks, and their minimums.
pub(super) trait Scales: Send + Sync + 'static {
    /// Blocks of 32 columns that an entry is for.
    const BLOCKS: usize;
    /// Scales in the row of a block.
    const HALVES: usize = 1;
    /// Whether a value is `scale · integer + minimum`, not `scale · integer`.
    const HAS_MINIMUM: bool;
    /// The scales of 16 rows.
    type Entry: Pod + Send + Sync;

    /// Scale and minimum of a half of a block, for a lane.
    fn get(entry: &Self::Entry, block: usize, half: usize, lane: usize) -> (f32, f32);

    /// The same of all lanes. Without a minimum the second one is a zero that nobody uses.
    fn load<S: Simd>(s: S, entry: &Self::Entry, block: usize, half: usize) -> (S::V, S::V);
}

/// A scale.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Plain {
    pub(super) scale: Halves,
}

/// A scale and a minimum.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct WithMinimum {
    pub(super) scale: Halves,
    pub(super) minimum: Halves,
}

/// Scales and minimums (subtracted) of 8 blocks: small integers, each times a common factor.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SuperWithMinimum {
    pub(super) scale: Halves,
    pub(super) minimum: Halves,
    /// Of each block the scales, then the minimums.
    pub(super) blocks: [[[u8; LANES]; 2]; 8],
}

/// Scales of 16 half blocks: small signed integers times a common factor.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SuperOfHalves {
    pub(super) scale: Halves,
    pub(super) blocks: [[[u8; LANES]; 2]; 8],
}

impl Scales for Plain {
    const BLOCKS: usize = 1;
    const HAS_MINIMUM: bool = false;
    type Entry = Self;

    fn get(entry: &Self, _: usize, _: usize, lane: usize) -> (f32, f32) {
        (f16_to_f32(entry.scale[lane]), 0.0)
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, entry: &Self, _: usize, _: usize) -> (S::V, S::V) {
        (s.load_f16(&entry.scale), s.zero())
    }
}

impl Scales for WithMinimum {
    const BLOCKS: usize = 1;
    const HAS_MINIMUM: bool = true;
    type Entry = Self;

    fn get(entry: &Self, _: usize, _: usize, lane: usize) -> (f32, f32) {
        (f16_to_f32(entry.scale[lane]), f16_to_f32(entry.minimum[lane]))
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, entry: &Self, _: usize, _: usize) -> (S::V, S::V) {
        (s.load_f16(&entry.scale), s.load_f16(&entry.minimum))
    }
}

impl Scales for SuperWithMinimum {
    const BLOCKS: usize = 8;
    const HAS_MINIMUM: bool = true;
    type Entry = Self;

    fn get(entry: &Self, block: usize, _: usize, lane: usize) -> (f32, f32) {
        let [scales, minimums] = &entry.blocks[block];
        let minimum = f16_to_f32(entry.minimum[lane]) * f32::from(minimums[lane]);
        (f16_to_f32(entry.scale[lane]) * f32::from(scales[lane]), -minimum)
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, entry: &Self, block: usize, _: usize) -> (S::V, S::V) {
        let [scales, minimums] = &entry.blocks[block];
        let minimum = s.mul(s.load_f16(&entry.minimum), s.splat(-1.0));
        (s.mul(s.load_f16(&entry.scale), s.load_u8(scales)), s.mul(minimum, s.load_u8(minimums)))
    }
}

impl Scales for SuperOfHalves {
    const BLOCKS: usize = 8;
    const HALVES: usize = 2;
    const HAS_MINIMUM: bool = false;
    type Entry = Self;

    fn get(entry: &Self, block: usize, half: usize, lane: usize) -> (f32, f32) {
        let scale = entry.blocks[block][half][lane] as i8;
        (f16_to_f32(entry.scale[lane]) * f32::from(scale), 0.0)
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, entry: &Self, block: usize, half: usize) -> (S::V, S::V) {
        (s.mul(s.load_f16(&entry.scale), s.load_i8(&entry.blocks[block][half])), s.zero())
    }
}
