//! The running softmax of a few queries: what has been seen so far, and how two halves become one.
//!
//! After the method of online normalization (Milakov and Gimelshein, 2018): for the keys seen, the largest score
//! `m`, the sum of `exp(score - m)` (as partial sums, a lane each), and the values weighted by it.

use crate::lanes::{LANES, Simd};

/// The state of `rows` queries, in memory that somebody else owns.
pub(super) struct Softmax<'a> {
    /// `[rows]`.
    pub(super) largest: &'a mut [f32],
    /// `[rows, LANES]`.
    pub(super) sums: &'a mut [f32],
    /// `[rows, padded_dim]`.
    pub(super) weighted: &'a mut [f32],
}

impl<'a> Softmax<'a> {
    /// Elements of the memory.
    pub(super) fn len(rows: usize, padded_dim: usize) -> usize {
        rows * (1 + LANES + padded_dim)
    }

    /// The state in `memory`, as it is there.
    pub(super) fn over(memory: &'a mut [f32], rows: usize, padded_dim: usize) -> Self {
        let (largest, memory) = memory.split_at_mut(rows);
        let (sums, memory) = memory.split_at_mut(rows * LANES);
        Self { largest, sums, weighted: &mut memory[..rows * padded_dim] }
    }

    /// Nothing seen. The largest score is finite, so that differences to it never are infinity less itself.
    pub(super) fn reset(&mut self) {
        self.largest.fill(f32::MIN);
        self.sums.fill(0.0);
        self.weighted.fill(0.0);
    }

    /// What `other`, of the same queries, has seen.
    pub(super) fn copy_from(&mut self, other: &Softmax<'_>) {
        self.largest.copy_from_slice(other.largest);
        self.sums.copy_from_slice(other.sums);
        self.weighted.copy_from_slice(other.weighted);
    }

    /// Adds what `other`, of the same queries, has seen. A query that has seen nothing in one of the two gets the
    /// other one's state as it is, but for the sign of zeros.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, s: S, other: &Softmax<'_>) {
        let padded_dim = self.weighted.len() / self.largest.len().max(1);
        for r in 0..self.largest.len() {
            let (ours, theirs) = (self.largest[r], other.largest[r]);
            let largest = if theirs > ours { theirs } else { ours };
            let keep = s.exp(s.splat(ours - largest));
            let take = s.exp(s.splat(theirs - largest));
            self.largest[r] = largest;
            let lanes = r * LANES..(r + 1) * LANES;
            blend(s, &mut self.sums[lanes.clone()], &other.sums[lanes], keep, take);
            let row = r * padded_dim..(r + 1) * padded_dim;
            blend(s, &mut self.weighted[row.clone()], &other.weighted[row], keep, take);
        }
    }

    /// The weighted mean of query `r`.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(&self, s: S, r: usize, out: &mut [f32]) {
        let padded_dim = self.weighted.len() / self.largest.len();
        let sums = self.sums[r * LANES..].first_chunk::<LANES>().expect("a vector of sums a query");
        let total = s.splat(s.sum(s.load(sums)));
        let weighted = self.weighted[r * padded_dim..].as_chunks::<LANES>().0;
        let (out, tail) = out.as_chunks_mut::<LANES>();
        let mut weighted = weighted.iter();
        // Adding zero makes a negative zero a positive one: which of them it was may depend on the tile.
        for (out, weighted) in out.iter_mut().zip(weighted.by_ref()) {
            s.store(s.add(s.div(s.load(weighted), total), s.zero()), out);
        }
        if let Some(weighted) = weighted.next().filter(|_| !tail.is_empty()) {
            s.store_head(s.add(s.div(s.load(weighted), total), s.zero()), tail);
        }
    }
}

/// `x = keep · x + take · y`; whole vectors.
#[inline(always)]
fn blend<S: Simd>(s: S, x: &mut [f32], y: &[f32], keep: S::V, take: S::V) {
    for (x, y) in x.as_chunks_mut::<LANES>().0.iter_mut().zip(y.as_chunks::<LANES>().0) {
        s.store(s.fma(keep, s.load(x), s.mul(take, s.load(y))), x);
    }
}
