//! Seeds for requests that bring none.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A sequence of seeds: those of one start value are the same in every run.
#[derive(Debug)]
pub(crate) struct Seeds {
    start: u64,
    num_drawn: AtomicU64,
}

impl Seeds {
    /// From a given start.
    pub(crate) fn from(start: u64) -> Self {
        Self { start, num_drawn: AtomicU64::new(0) }
    }

    /// From the randomness of the system.
    pub(crate) fn random() -> Self {
        Self::from(random_u64())
    }

    /// SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
    pub(crate) fn draw(&self) -> u64 {
        let number = self.num_drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut mixed = self.start.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// A number that nobody can guess: the standard library keys its hash tables with the system's randomness.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}
