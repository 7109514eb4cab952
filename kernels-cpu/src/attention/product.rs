//! The two products of attention, over tiles of queries that stay in registers.
//!
//! Every element of a result is one chain of fused multiply-adds in the order of its summands, whatever the
//! size of the tile: so the same query gives the same bits alone and among others.
//!
//! A tile takes as many vectors of keys (or of columns) at once as the registers hold, and single ones of what is
//! left: more sizes would cost more compilation than they save.
#![allow(clippy::needless_range_loop)] // Indices in step over several arrays say more than chains of zips.

use super::TILE_KEYS;
use super::stored::Stored;
use super::strip::Strip;
use crate::lanes::{LANES, Simd};

/// Most queries of a register tile on any instruction set.
pub(super) const MAX_QUERIES: usize = 6;

/// Scores, then weights, of the queries of a register tile.
pub(super) type Scores = [[f32; TILE_KEYS]; MAX_QUERIES];

/// Queries of a register tile on this instruction set, over keys and values of this type.
#[inline(always)]
const fn max_queries<S: Simd, E: Stored>() -> usize {
    if S::ACCUMULATORS < E::MAX_QUERIES { S::ACCUMULATORS } else { E::MAX_QUERIES }
}

/// Calls `$f::<S, E, R>($args, first)` for tiles of `R` queries, as many as the registers hold, until all `$rows`
/// are done; `first` is the tile's first query.
macro_rules! for_tiles {
    ($S:ident, $E:ident, $rows:expr, $f:ident($($arg:expr),*)) => {
        let max = const { max_queries::<$S, $E>() };
        let mut first = 0;
        while first < $rows {
            let rows = ($rows - first).min(max);
            match rows {
                1 => $f::<$S, $E, 1>($($arg),*, first),
                2 if max >= 2 => $f::<$S, $E, 2>($($arg),*, first),
                3 if max >= 3 => $f::<$S, $E, 3>($($arg),*, first),
                4 if max >= 4 => $f::<$S, $E, 4>($($arg),*, first),
                5 if max >= 5 => $f::<$S, $E, 5>($($arg),*, first),
                6 if max >= 6 => $f::<$S, $E, 6>($($arg),*, first),
                rows => unreachable!("{rows} queries in a register tile"),
            }
            first += rows;
        }
    };
}

/// At most [`MAX_QUERIES`] queries, element by element: `[head_dim, rows]`.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub(super) elements: &'a [f32],
    pub(super) rows: usize,
}

/// `scores[r][16 i + j] = query r · key j of strip first + i`, for all the strips.
#[inline(always)]
pub(super) fn score<S: Simd, E: Stored>(
    s: S,
    queries: Queries<'_>,
    keys: &[Strip<'_, E>],
    first_strip: usize,
    scores: &mut Scores,
) {
    for_tiles!(S, E, queries.rows, score_rows(s, queries, keys, first_strip, scores));
}

#[inline(always)]
fn score_rows<S: Simd, E: Stored, const R: usize>(
    s: S,
    queries: Queries<'_>,
    keys: &[Strip<'_, E>],
    first_strip: usize,
    scores: &mut Scores,
    first_row: usize,
) {
    let scores = &mut scores[first_row..];
    let mut done = 0;
    while done < keys.len() {
        let (keys, first_strip) = (&keys[done..], first_strip + done);
        done += match keys.len() {
            4.. if S::ACCUMULATORS >= 4 * R => {
                score_tile::<S, E, R, 4>(s, queries, first_row, keys, first_strip, scores)
            }
            2.. if (2 * R..4 * R).contains(&S::ACCUMULATORS) => {
                score_tile::<S, E, R, 2>(s, queries, first_row, keys, first_strip, scores)
            }
            _ => score_tile::<S, E, R, 1>(s, queries, first_row, keys, first_strip, scores),
        };
    }
}

/// `N` strips at once; returns `N`.
#[inline(always)]
fn score_tile<S: Simd, E: Stored, const R: usize, const N: usize>(
    s: S,
    queries: Queries<'_>,
    first_row: usize,
    keys: &[Strip<'_, E>],
    first_strip: usize,
    scores: &mut [[f32; TILE_KEYS]],
) -> usize {
    // Known to the compiler where all rows fit in a tile, which saves it a pointer a row.
    let stride = if max_queries::<S, E>() == MAX_QUERIES { R } else { queries.rows };
    let head_dim = queries.elements.len() / stride;
    let keys = keys.first_chunk::<N>().expect("the caller has as many strips");
    keys.iter().for_each(|strip| strip.check(head_dim, LANES));
    assert!(first_row + R <= stride && (first_strip + N) * LANES <= TILE_KEYS);
    let mut sums = [[s.zero(); N]; R];
    for d in 0..head_dim {
        let mut k = [s.zero(); N];
        for n in 0..N {
            // SAFETY: the strip was checked to have `head_dim` rows of a vector.
            k[n] = E::decode_lanes(s, unsafe { keys[n].vector(d, 0) });
        }
        for r in 0..R {
            // SAFETY: there are `head_dim` times `stride` elements, and the row is below `stride`.
            let q = s.splat(unsafe { *queries.elements.get_unchecked(d * stride + first_row + r) });
            for n in 0..N {
                sums[r][n] = s.fma(q, k[n], sums[r][n]);
            }
        }
    }
    for (sums, scores) in sums.iter().zip(scores) {
        let scores = scores.as_chunks_mut::<LANES>().0;
        for (sum, scores) in sums.iter().zip(&mut scores[first_strip..]) {
            s.store(*sum, scores);
        }
    }
    N
}

/// Arguments of [`weigh`].
#[derive(Clone, Copy)]
pub(super) struct Weigh<'a, E> {
    /// Weights by query and key of the tile.
    pub(super) weights: &'a Scores,
    /// What the sums so far are multiplied by, one a query.
    pub(super) rescale: &'a [f32],
    /// The keys from...
    pub(super) start: usize,
    /// ... to that have a weight.
    pub(super) end: usize,
    /// All strips of the tile.
    pub(super) values: &'a [Strip<'a, E>],
}

/// `sums[r] = rescale[r] · sums[r] + Σ weights[r][j] · values[j]`; `sums` holds rows of `padded_dim`, a
/// multiple of the lanes, one a query.
#[inline(always)]
pub(super) fn weigh<S: Simd, E: Stored>(s: S, args: Weigh<'_, E>, sums: &mut [f32], padded_dim: usize) {
    let rows = sums.len() / padded_dim;
    for_tiles!(S, E, rows, weigh_rows(s, args, sums, padded_dim));
}

#[inline(always)]
fn weigh_rows<S: Simd, E: Stored, const R: usize>(
    s: S,
    args: Weigh<'_, E>,
    sums: &mut [f32],
    padded_dim: usize,
    first_row: usize,
) {
    let mut column = 0;
    while column < padded_dim {
        let left = (padded_dim - column) / LANES;
        let done = match left {
            4.. if S::ACCUMULATORS >= 4 * R => {
                weigh_tile::<S, E, R, 4>(s, args, sums, padded_dim, first_row, column)
            }
            2.. if (2 * R..4 * R).contains(&S::ACCUMULATORS) => {
                weigh_tile::<S, E, R, 2>(s, args, sums, padded_dim, first_row, column)
            }
            _ => weigh_tile::<S, E, R, 1>(s, args, sums, padded_dim, first_row, column),
        };
        column += done * LANES;
    }
}

/// `C` vectors of columns at once; returns `C`.
#[inline(always)]
fn weigh_tile<S: Simd, E: Stored, const R: usize, const C: usize>(
    s: S,
    args: Weigh<'_, E>,
    sums: &mut [f32],
    padded_dim: usize,
    first_row: usize,
    column: usize,
) -> usize {
    let start = |r: usize| (first_row + r) * padded_dim + column;
    let weights = args.weights[first_row..].first_chunk::<R>().expect("a row of weights a query");
    let mut acc = [[s.zero(); C]; R];
    for r in 0..R {
        let rescale = s.splat(args.rescale[first_row + r]);
        for (acc, sum) in acc[r].iter_mut().zip(sums[start(r)..].as_chunks::<LANES>().0) {
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
            for c in 0..C {
                // SAFETY: the strip was checked to have the row and the columns.
                v[c] = E::decode_lanes(s, unsafe { strip.vector(j % LANES, column + c * LANES) });
            }
            for r in 0..R {
                let weight = s.splat(weights[r][j]);
                for c in 0..C {
                    acc[r][c] = s.fma(weight, v[c], acc[r][c]);
                }
            }
        }
        key = end;
    }
    for r in 0..R {
        for (acc, sum) in acc[r].iter().zip(sums[start(r)..].as_chunks_mut::<LANES>().0) {
            s.store(*acc, sum);
        }
    }
    C
}
