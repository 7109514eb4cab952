//! Chance, by seed.

use std::ops::Range;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): small, and good enough
/// to choose test cases with.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of numbers that belongs to a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number of a range, which must not be empty.
    pub fn range(&mut self, range: Range<u32>) -> u32 {
        range.start + (self.next_u64() % u64::from(range.end - range.start)) as u32
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u32) -> bool {
        self.range(0..times) == 0
    }

    /// An element of a slice, which must not be empty.
    pub fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.range(0..of.len() as u32) as usize]
    }
}

/// A function of 64 bits that looks random.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
