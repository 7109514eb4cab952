//! One pass over a row of logits: its largest one, and bounds for the next largest.

use std::ops::Range;

use crate::Isa;
use crate::lanes::{self, LANES, Program, Simd};

/// Chunks that a row is cut into.
const CHUNKS: usize = 64;

/// Groups of a row: each lane of each chunk.
const GROUPS: usize = CHUNKS * LANES;

/// The largest logit of every group of a row: a group is every sixteenth element of a chunk.
pub(super) struct Summary {
    maxima: [f32; GROUPS],
    len: usize,
    max: f32,
    has_nan: bool,
}

impl Summary {
    pub(super) fn of(isa: Isa, logits: &[f32]) -> Self {
        lanes::run(isa, Summarize { logits })
    }

    /// The largest logit.
    pub(super) fn max(&self) -> f32 {
        self.max
    }

    /// Whether a token can be chosen: the largest logit is finite, and none is NaN.
    pub(super) fn is_sound(&self) -> bool {
        self.max.is_finite() && !self.has_nan
    }

    /// The first token that has the largest logit; 0 where none is above minus infinity.
    pub(super) fn argmax(&self, logits: &[f32]) -> usize {
        if self.max == f32::NEG_INFINITY {
            return 0;
        }
        let holds_it = |maxima: &[f32]| maxima.contains(&self.max);
        let chunk = self.maxima.chunks(LANES).position(holds_it).expect("the largest one is in a group");
        let tokens = chunk_of(chunk, self.len);
        let within = logits[tokens.clone()].iter().position(|&l| l == self.max);
        tokens.start + within.expect("the largest one is in its chunk")
    }

    /// A value that at least `count` logits reach; it is often close to the `count`-th largest one.
    pub(super) fn reached_by(&self, count: usize) -> f32 {
        if count == 0 || count > GROUPS {
            return f32::NEG_INFINITY;
        }
        let mut maxima = self.maxima;
        *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
    }
}

/// The tokens of a chunk.
fn chunk_of(chunk: usize, len: usize) -> Range<usize> {
    let chunk_len = len.div_ceil(CHUNKS).next_multiple_of(LANES);
    (chunk * chunk_len).min(len)..((chunk + 1) * chunk_len).min(len)
}

struct Summarize<'a> {
    logits: &'a [f32],
}

impl Program for Summarize<'_> {
    type Output = Summary;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Summary {
        let len = self.logits.len();
        let mut maxima = [f32::NEG_INFINITY; GROUPS];
        let (mut max, mut sum) = (s.splat(f32::NEG_INFINITY), s.zero());
        for (chunk, maxima) in maxima.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let of_chunk = lane_maxima(s, &self.logits[chunk_of(chunk, len)], &mut sum);
            s.store(of_chunk, maxima);
            max = s.max(of_chunk, max);
        }
        // A NaN makes its lane's sum one. So do infinities of both signs, hence the second look.
        let may_have_nan = s.ge(sum, sum) != u16::MAX;
        let has_nan = may_have_nan && self.logits.iter().any(|logit| logit.is_nan());
        Summary { maxima, len, max: s.largest(max), has_nan }
    }
}

/// The largest logit of every lane, NaN left out; adds the logits of every lane to `sum`.
#[inline(always)]
fn lane_maxima<S: Simd>(s: S, logits: &[f32], sum: &mut S::V) -> S::V {
    let (mut maxima, mut sums) = ([s.splat(f32::NEG_INFINITY); 4], [s.zero(); 4]);
    let (quads, rest) = logits.as_chunks::<{ 4 * LANES }>();
    for quad in quads {
        for ((max, sum), v) in maxima.iter_mut().zip(&mut sums).zip(quad.as_chunks::<LANES>().0) {
            let v = s.load(v);
            *max = s.max(v, *max);
            *sum = s.add(*sum, v);
        }
    }
    for v in rest.chunks(LANES) {
        let v = s.load_head(v, f32::NEG_INFINITY);
        maxima[0] = s.max(v, maxima[0]);
        sums[0] = s.add(sums[0], v);
    }
    *sum = s.add(*sum, s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    s.max(s.max(maxima[0], maxima[1]), s.max(maxima[2], maxima[3]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn the_largest_logit_is_found_whatever_the_length() {
        for isa in Isa::available() {
            for len in [1, 2, 15, 16, 17, 1000, 1024, 1025, 49_152] {
                let mut logits = noise(len, len as u32);
                for best in [0, len / 3, len - 1] {
                    logits[best] = 2.0;
                    logits[len - 1] = 2.0;
                    let summary = Summary::of(isa, &logits);
                    assert_eq!((summary.max(), summary.argmax(&logits)), (2.0, best), "{isa} {len}");
                    logits[best] = 0.0;
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_is_never_the_largest() {
        for isa in Isa::available() {
            let mut logits = vec![f32::NAN; 100];
            assert_eq!(Summary::of(isa, &logits).argmax(&logits), 0);
            logits[77] = f32::MIN;
            assert_eq!(Summary::of(isa, &logits).argmax(&logits), 77);
            logits[78] = f32::INFINITY;
            assert_eq!(Summary::of(isa, &logits).argmax(&logits), 78);
        }
    }

    #[test]
    fn a_row_is_sound_unless_it_holds_nan_or_plus_infinity_or_nothing_finite() {
        const FORBIDDEN: f32 = f32::NEG_INFINITY;
        for isa in Isa::available() {
            for len in [1, 2, 17, 100, 1025, 4096] {
                for place in [0, len / 2, len - 1] {
                    let is_sound = |rest: f32, value: f32| {
                        let mut logits = vec![rest; len];
                        logits[place] = value;
                        Summary::of(isa, &logits).is_sound()
                    };
                    for rest in [0.5, FORBIDDEN, -3e38] {
                        assert!(is_sound(rest, 1.0), "{isa} {len} {place} {rest}");
                        assert!(!is_sound(rest, f32::NAN), "{isa} {len} {place} {rest}");
                        assert!(!is_sound(rest, f32::INFINITY), "{isa} {len} {place} {rest}");
                    }
                    assert!(!is_sound(FORBIDDEN, FORBIDDEN));
                    assert!(is_sound(3e38, FORBIDDEN) == (len > 1), "sums that overflow are no NaN");
                }
            }
        }
    }

    #[test]
    fn a_bound_is_reached_by_as_many_as_it_says() {
        for len in [1, 100, 5000, 50_000] {
            let logits = noise(len, 8);
            for count in [1, 2, 40, 100, 1000].into_iter().filter(|&count| count <= len) {
                let bound = Summary::of(Isa::best(), &logits).reached_by(count);
                assert!(logits.iter().filter(|&&l| l >= bound).count() >= count);
            }
        }
    }
}
