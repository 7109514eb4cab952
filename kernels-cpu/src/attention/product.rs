//! The two products of attention, over tiles of queries that stay in registers.
//!
//! Every element of a result is one chain of fused multiply-adds in the order of its summands, whatever the
//! size of the tile: so the same query gives the same bits alone and among others.

use super::TILE_KEYS;
use super::strip::Strip;
use crate::lanes::{LANES, Simd};

/// Most queries of a register tile on any instruction set.
pub(super) const MAX_QUERIES: usize = 6;

/// Scores, then weights, of the queries of a register tile.
pub(super) type Scores = [[f32; TILE_KEYS]; MAX_QUERIES];

/// Queries of a register tile on the instruction set.
#[inline(always)]
pub(super) const fn max_queries<S: Simd>() -> usize {
    if S::ACCUMULATORS < MAX_QUERIES { S::ACCUMULATORS } else { MAX_QUERIES }
}

/// Calls `$f::<S, R>` for `$rows`, at most [`max_queries`], known at compile time.
macro_rules! for_rows {
    ($S:ident, $rows:expr, $f:ident($($arg:expr),*)) => {
        match $rows {
            1 => $f::<$S, 1>($($arg),*),
            2 if max_queries::<$S>() >= 2 => $f::<$S, 2>($($arg),*),
            3 if max_queries::<$S>() >= 3 => $f::<$S, 3>($($arg),*),
            4 if max_queries::<$S>() >= 4 => $f::<$S, 4>($($arg),*),
            5 if max_queries::<$S>() >= 5 => $f::<$S, 5>($($arg),*),
            6 if max_queries::<$S>() >= 6 => $f::<$S, 6>($($arg),*),
            rows => unreachable!("{rows} queries in a register tile"),
        }
    };
}

/// `scores[r][16 i + j] = queries[r] · key j of strip first + i`, for all the strips. `queries` holds rows of
/// `head_dim`, one a query.
#[inline(always)]
pub(super) fn score<S: Simd>(
    s: S,
    queries: &[f32],
    head_dim: usize,
    keys: &[Strip<'_>],
    first: usize,
    scores: &mut Scores,
) {
    let rows = queries.len() / head_dim;
    for_rows!(S, rows, score_rows(s, queries, head_dim, keys, first, scores));
}

#[inline(always)]
fn score_rows<S: Simd, const R: usize>(
    s: S,
    queries: &[f32],
    head_dim: usize,
    keys: &[Strip<'_>],
    first: usize,
    scores: &mut Scores,
) {
    let mut done = 0;
    while done < keys.len() {
        let (keys, first) = (&keys[done..], first + done);
        done += if keys.len() >= 4 && 4 * R <= S::ACCUMULATORS {
            score_tile::<S, R, 4>(s, queries, head_dim, keys, first, scores)
        } else if keys.len() >= 2 && 2 * R <= S::ACCUMULATORS {
            score_tile::<S, R, 2>(s, queries, head_dim, keys, first, scores)
        } else {
            score_tile::<S, R, 1>(s, queries, head_dim, keys, first, scores)
        };
    }
}

/// `N` strips at once; returns `N`.
#[inline(always)]
fn score_tile<S: Simd, const R: usize, const N: usize>(
    s: S,
    queries: &[f32],
    head_dim: usize,
    keys: &[Strip<'_>],
    first: usize,
    scores: &mut Scores,
) -> usize {
    let keys = keys.first_chunk::<N>().expect("the caller has as many strips");
    keys.iter().for_each(|strip| strip.check(head_dim, LANES));
    assert!(queries.len() >= R * head_dim && (first + N) * LANES <= TILE_KEYS);
    let mut sums = [[s.zero(); N]; R];
    for d in 0..head_dim {
        let mut k = [s.zero(); N];
        for (k, strip) in k.iter_mut().zip(keys) {
            // SAFETY: the strip was checked to have `head_dim` rows of a vector.
            *k = s.load(unsafe { strip.vector(d, 0) });
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `queries` was checked to hold `R` rows of `head_dim`.
            let q = s.splat(unsafe { *queries.get_unchecked(r * head_dim + d) });
            for (sum, k) in sums.iter_mut().zip(&k) {
                *sum = s.fma(q, *k, *sum);
            }
        }
    }
    for (sums, scores) in sums.iter().zip(scores) {
        let scores = scores.as_chunks_mut::<LANES>().0;
        for (sum, scores) in sums.iter().zip(&mut scores[first..]) {
            s.store(*sum, scores);
        }
    }
    N
}

/// Arguments of [`weigh`].
#[derive(Clone, Copy)]
pub(super) struct Weigh<'a> {
    /// Weights by query and key of the tile.
    pub(super) weights: &'a Scores,
    /// What the sums so far are multiplied by, one a query.
    pub(super) rescale: &'a [f32],
    /// The keys from...
    pub(super) start: usize,
    /// ... to that have a weight.
    pub(super) end: usize,
    /// All strips of the tile.
    pub(super) values: &'a [Strip<'a>],
}

/// `sums[r] = rescale[r] · sums[r] + Σ weights[r][j] · values[j]`; `sums` holds rows of `padded_dim`, a
/// multiple of the lanes, one a query.
#[inline(always)]
pub(super) fn weigh<S: Simd>(s: S, args: Weigh<'_>, sums: &mut [f32], padded_dim: usize) {
    let rows = sums.len() / padded_dim;
    for_rows!(S, rows, weigh_rows(s, args, sums, padded_dim));
}

#[inline(always)]
fn weigh_rows<S: Simd, const R: usize>(s: S, args: Weigh<'_>, sums: &mut [f32], padded_dim: usize) {
    let mut column = 0;
    while column < padded_dim {
        let left = (padded_dim - column) / LANES;
        column += LANES
            * if left >= 4 && 4 * R <= S::ACCUMULATORS {
                weigh_tile::<S, R, 4>(s, args, sums, padded_dim, column)
            } else if left >= 2 && 2 * R <= S::ACCUMULATORS {
                weigh_tile::<S, R, 2>(s, args, sums, padded_dim, column)
            } else {
                weigh_tile::<S, R, 1>(s, args, sums, padded_dim, column)
            };
    }
}

/// `C` vectors of columns at once; returns `C`.
#[inline(always)]
fn weigh_tile<S: Simd, const R: usize, const C: usize>(
    s: S,
    args: Weigh<'_>,
    sums: &mut [f32],
    padded_dim: usize,
    column: usize,
) -> usize {
    let mut acc = [[s.zero(); C]; R];
    for (r, acc) in acc.iter_mut().enumerate() {
        let row = sums[r * padded_dim + column..].as_chunks::<LANES>().0;
        let rescale = s.splat(args.rescale[r]);
        for (acc, sum) in acc.iter_mut().zip(&row[..C]) {
            *acc = s.mul(rescale, s.load(sum));
        }
    }
    let mut key = args.start;
    while key < args.end {
        let strip = args.values[key / LANES];
        let end = args.end.min((key / LANES + 1) * LANES);
        strip.check((end - 1) % LANES + 1, column + C * LANES);
        for j in key..end {
            let mut v = [s.zero(); C];
            for (c, v) in v.iter_mut().enumerate() {
                // SAFETY: the strip was checked to have the row and the columns.
                *v = s.load(unsafe { strip.vector(j % LANES, column + c * LANES) });
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let weight = s.splat(args.weights[r][j]);
                for (acc, v) in acc.iter_mut().zip(&v) {
                    *acc = s.fma(weight, *v, *acc);
                }
            }
        }
        key = end;
    }
    for (r, acc) in acc.iter().enumerate() {
        let row = sums[r * padded_dim + column..].as_chunks_mut::<LANES>().0;
        for (acc, sum) in acc.iter().zip(&mut row[..C]) {
            s.store(*acc, sum);
        }
    }
    C
}
