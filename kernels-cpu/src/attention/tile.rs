//! Attention of a tile of queries, key tile by key tile.
//!
//! What a query sees is cut at multiples of [`SPAN_KEYS`] positions into spans, and a span at multiples of
//! [`TILE_KEYS`] into tiles. A span is one running softmax over its tiles in order; the spans are merged in
//! order. The cuts depend on positions alone, and a tile or a span of which a query sees nothing leaves its
//! state as it is, to the bit. So the result does not depend on which queries share a tile, on how a prompt was
//! cut into chunks, or on which thread did which span. (Values have to be finite for that: what a query does not
//! see weighs zero, and zero times infinity is no number.)

use std::ops::Range;

use half::{bf16, f16};

use super::cache::{Decoded, KeyTile, RowCache, Source};
use super::product::{self, MAX_QUERIES, Queries, Scores, Weigh};
use super::softmax::Softmax;
use super::stored::Stored;
use super::{SPAN_KEYS, TILE_KEYS};
use crate::Isa;
use crate::access::{Rows, RowsMut};
use crate::activation::soft_cap;
use crate::lanes::{self, LANES, Program, Simd};

/// Most queries of a tile, a head of a token each.
pub(super) const MAX_ROWS: usize = 48;

/// Queries that share a key and value head: some heads of some consecutive tokens of a row. Query `r` is head
/// `r % heads.len()` of token `r / heads.len()`.
#[derive(Clone, Debug)]
pub(super) struct QueryTile {
    /// Rows of the flat input.
    pub(super) tokens: Range<usize>,
    /// Position of the first token.
    pub(super) position: usize,
    /// Query heads.
    pub(super) heads: Range<usize>,
    pub(super) kv_head: usize,
    /// A query sees itself and the `window - 1` tokens before it.
    pub(super) window: usize,
    /// Of the results.
    pub(super) value_scale: f32,
}

impl QueryTile {
    pub(super) fn num_rows(&self) -> usize {
        self.tokens.len() * self.heads.len()
    }

    /// The token and the head of a query.
    pub(super) fn query(&self, row: usize) -> (usize, usize) {
        (self.tokens.start + row / self.heads.len(), self.heads.start + row % self.heads.len())
    }

    /// The positions that some queries, the first one before the last one, see between them.
    fn visible(&self, rows: Range<usize>) -> Range<usize> {
        let position = |row: usize| self.position + row / self.heads.len();
        let first = (position(rows.start) + 1).saturating_sub(self.window);
        first..position(rows.end - 1) + 1
    }

    /// The queries by register tiles, as even as they can be.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let rows = self.num_rows();
        let groups = rows.div_ceil(MAX_QUERIES);
        (0..groups).map(move |g| rows * g / groups..rows * (g + 1) / groups)
    }

    /// What [`Task::attend`] would give, from the states of the tile's spans in order.
    ///
    /// # Safety
    ///
    /// No other slice of the tile's outputs in `out` is alive.
    pub(super) unsafe fn merge<'m>(
        &self,
        isa: Isa,
        head_dim: usize,
        states: impl Iterator<Item = &'m mut [f32]>,
        workspace: &mut Workspace<'_>,
        out: &RowsMut<'_, f32>,
    ) {
        let (rows, padded_dim) = (self.num_rows(), head_dim.next_multiple_of(LANES));
        let mut total = Softmax::over(workspace.total, rows, padded_dim);
        for (i, state) in states.enumerate() {
            let part = Softmax::over(state, rows, padded_dim);
            match i {
                0 => total.copy_from(&part),
                _ => lanes::run(isa, Merge { total: &mut total, part: &part }),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { finish(isa, self, head_dim, &total, out) };
    }

    /// The spans that the queries see between them.
    pub(super) fn spans(&self) -> Range<usize> {
        let visible = self.visible(0..self.num_rows());
        visible.start / SPAN_KEYS..visible.end.div_ceil(SPAN_KEYS)
    }
}

/// A thread's own memory.
pub(super) struct Workspace<'a> {
    queries: &'a mut [f32],
    decoded: Decoded<'a>,
    span: &'a mut [f32],
    total: &'a mut [f32],
}

impl<'a> Workspace<'a> {
    /// Elements that a workspace takes.
    pub(super) fn len(head_dim: usize) -> usize {
        let (keys, values) = Decoded::lens(head_dim);
        let state = Softmax::len(MAX_ROWS, head_dim.next_multiple_of(LANES));
        MAX_ROWS * head_dim + keys + values + 2 * state
    }

    /// A workspace in `memory`.
    pub(super) fn over(memory: &'a mut [f32], head_dim: usize) -> Self {
        let (keys, values) = Decoded::lens(head_dim);
        let (queries, memory) = memory.split_at_mut(MAX_ROWS * head_dim);
        let (keys, memory) = memory.split_at_mut(keys);
        let (values, memory) = memory.split_at_mut(values);
        let (span, total) = memory.split_at_mut(Softmax::len(MAX_ROWS, head_dim.next_multiple_of(LANES)));
        Self { queries, decoded: Decoded { keys, values }, span, total }
    }
}

/// A tile and what it reads.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) tile: &'a QueryTile,
    pub(super) cache: RowCache<'a>,
    pub(super) queries: Rows<'a, f32>,
    pub(super) scale: f32,
    pub(super) soft_cap: Option<f32>,
}

impl Task<'_> {
    /// All of the tile.
    ///
    /// # Safety
    ///
    /// No other slice of the tile's outputs in `out` is alive.
    pub(super) unsafe fn attend(&self, isa: Isa, workspace: &mut Workspace<'_>, out: &RowsMut<'_, f32>) {
        let (rows, padded_dim) = (self.tile.num_rows(), self.cache.shape.padded_dim());
        self.load_queries(workspace.queries);
        let mut total = Softmax::over(workspace.total, rows, padded_dim);
        let mut part = Softmax::over(workspace.span, rows, padded_dim);
        for (i, span) in self.tile.spans().enumerate() {
            let state = if i == 0 { &mut total } else { &mut part };
            state.reset();
            self.add_span(isa, span, workspace.queries, &mut workspace.decoded, state);
            if i > 0 {
                lanes::run(isa, Merge { total: &mut total, part: &part });
            }
        }
        // SAFETY: the caller's promise.
        unsafe { finish(isa, self.tile, self.cache.shape.head_dim, &total, out) };
    }

    /// One span of the tile, into `state`.
    pub(super) fn attend_span(
        &self,
        isa: Isa,
        span: usize,
        workspace: &mut Workspace<'_>,
        state: &mut [f32],
    ) {
        let mut state = Softmax::over(state, self.tile.num_rows(), self.cache.shape.padded_dim());
        state.reset();
        self.load_queries(workspace.queries);
        self.add_span(isa, span, workspace.queries, &mut workspace.decoded, &mut state);
    }

    /// Adds what the queries, as [`load_queries`](Self::load_queries) leaves them, see in a span.
    fn add_span(
        &self,
        isa: Isa,
        span: usize,
        queries: &[f32],
        decoded: &mut Decoded<'_>,
        state: &mut Softmax<'_>,
    ) {
        let (cache, head, rows) = (&self.cache, self.tile.kv_head, self.tile.num_rows());
        let (visible, source) = (self.tile.visible(0..rows), cache.shape.source(isa, rows));
        for start in (span * SPAN_KEYS..(span + 1) * SPAN_KEYS).step_by(TILE_KEYS) {
            let seen = visible.start.max(start)..visible.end.min(start + TILE_KEYS);
            if seen.is_empty() {
                continue;
            }
            match source {
                Source::F32 => {
                    self.add_tile::<f32>(isa, start, &cache.tile(head, start, seen), queries, state)
                }
                Source::F16 => {
                    self.add_tile::<f16>(isa, start, &cache.tile(head, start, seen), queries, state)
                }
                Source::BF16 => {
                    self.add_tile::<bf16>(isa, start, &cache.tile(head, start, seen), queries, state)
                }
                Source::Decoded => {
                    let keys = cache.decoded_tile(isa, head, start, seen, decoded);
                    self.add_tile(isa, start, &keys, queries, state);
                }
            }
        }
    }

    /// Adds what the queries see in a tile of keys.
    fn add_tile<E: Stored>(
        &self,
        isa: Isa,
        start: usize,
        keys: &KeyTile<'_, E>,
        queries: &[f32],
        state: &mut Softmax<'_>,
    ) {
        for rows in self.tile.groups() {
            let soft_cap = self.soft_cap;
            lanes::run(isa, AttendGroup { tile: self.tile, keys, start, rows, queries, soft_cap, state });
        }
    }

    /// The tile's queries times the scale, group by group as [`Queries`] has them.
    fn load_queries(&self, to: &mut [f32]) {
        let head_dim = self.cache.shape.head_dim;
        for group in self.tile.groups() {
            let mut queries: [&[f32]; MAX_QUERIES] = [&[]; MAX_QUERIES];
            for (query, row) in queries.iter_mut().zip(group.clone()) {
                let (token, head) = self.tile.query(row);
                *query = &self.queries.row(token)[head * head_dim..(head + 1) * head_dim];
            }
            let to = &mut to[group.start * head_dim..group.end * head_dim];
            match group.len() {
                1 => pack::<1>(&queries, self.scale, to),
                2 => pack::<2>(&queries, self.scale, to),
                3 => pack::<3>(&queries, self.scale, to),
                4 => pack::<4>(&queries, self.scale, to),
                5 => pack::<5>(&queries, self.scale, to),
                _ => pack::<MAX_QUERIES>(&queries, self.scale, to),
            }
        }
    }
}

/// The first `N` queries times the scale, element by element.
fn pack<const N: usize>(queries: &[&[f32]; MAX_QUERIES], scale: f32, to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut::<N>();
    let queries: [&[f32]; N] = std::array::from_fn(|i| &queries[i][..to.len()]);
    for (d, to) in to.iter_mut().enumerate() {
        for (to, query) in to.iter_mut().zip(&queries) {
            *to = query[d] * scale;
        }
    }
}

/// Writes the outputs of a tile.
///
/// # Safety
///
/// No other slice of the tile's outputs in `out` is alive.
unsafe fn finish(isa: Isa, tile: &QueryTile, head_dim: usize, total: &Softmax<'_>, out: &RowsMut<'_, f32>) {
    for row in 0..tile.num_rows() {
        let (token, head) = tile.query(row);
        // SAFETY: the caller's promise; each row has its own head of its own token.
        let out = unsafe { out.slice_mut(token, head * head_dim..(head + 1) * head_dim) };
        lanes::run(isa, Finish { total, row, out: &mut *out });
        if tile.value_scale != 1.0 {
            out.iter_mut().for_each(|element| *element *= tile.value_scale);
        }
    }
}

struct Merge<'a, 't, 'p> {
    total: &'a mut Softmax<'t>,
    part: &'a Softmax<'p>,
}

impl Program for Merge<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.total.merge(s, self.part);
    }
}

struct Finish<'a, 'm> {
    total: &'a Softmax<'m>,
    row: usize,
    out: &'a mut [f32],
}

impl Program for Finish<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.total.finish(s, self.row, self.out);
    }
}

/// Queries of a register tile before a tile of keys.
struct AttendGroup<'a, 'm, E> {
    tile: &'a QueryTile,
    keys: &'a KeyTile<'a, E>,
    /// Position of the first key.
    start: usize,
    rows: Range<usize>,
    /// Of all groups.
    queries: &'a [f32],
    soft_cap: Option<f32>,
    state: &'a mut Softmax<'m>,
}

impl<E> AttendGroup<'_, '_, E> {
    /// The keys, counted from the first one of the tile, that some of the queries see between them.
    fn seen(&self, rows: Range<usize>) -> Range<usize> {
        let visible = self.tile.visible(rows);
        let within = |position: usize| position.saturating_sub(self.start).min(TILE_KEYS);
        within(visible.start)..within(visible.end)
    }
}

impl<E: Stored> Program for AttendGroup<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (rows, seen) = (self.rows.clone(), self.seen(self.rows.clone()));
        if seen.is_empty() {
            return;
        }
        let head_dim = self.queries.len() / MAX_ROWS;
        let padded_dim = head_dim.next_multiple_of(LANES);
        let strips = seen.start / LANES..seen.end.div_ceil(LANES);
        let elements = &self.queries[rows.start * head_dim..rows.end * head_dim];
        let queries = Queries { elements, rows: rows.len() };
        let mut scores: Scores = [[0.0; TILE_KEYS]; MAX_QUERIES];
        product::score(s, queries, &self.keys.keys[strips.clone()], strips.start, &mut scores);

        if let Some(cap) = self.soft_cap {
            scores[..rows.len()].iter_mut().for_each(|scores| bend(s, scores, strips.clone(), cap));
        }
        let mut drop = [0.0; LANES];
        for (i, row) in rows.clone().enumerate() {
            let best = mask(s, &mut scores[i], strips.clone(), self.seen(row..row + 1));
            let largest = &mut self.state.largest[row];
            let so_far = *largest;
            *largest = if best > so_far { best } else { so_far };
            drop[i] = so_far - *largest;
        }
        let rescale = s.lanes(s.exp(s.load(&drop)));
        let sums = self.state.sums[rows.start * LANES..].as_chunks_mut().0;
        for (i, sums) in sums[..rows.len()].iter_mut().enumerate() {
            let largest = self.state.largest[rows.start + i];
            exponentiate(s, &mut scores[i], strips.clone(), largest, rescale[i], sums);
        }
        let (weights, values) = (&scores, &self.keys.values);
        let args = Weigh { weights, rescale: &rescale, start: seen.start, end: seen.end, values };
        let weighted = &mut self.state.weighted[rows.start * padded_dim..rows.end * padded_dim];
        product::weigh(s, args, weighted, padded_dim);
    }
}

/// Puts scores under a soft cap.
#[inline(always)]
fn bend<S: Simd>(s: S, scores: &mut [f32; TILE_KEYS], strips: Range<usize>, cap: f32) {
    for scores in &mut scores.as_chunks_mut::<LANES>().0[strips] {
        s.store(soft_cap(s, s.load(scores), cap), scores);
    }
}

/// Makes the scores of what is not seen minus infinity, and returns the largest one of the others.
#[inline(always)]
fn mask<S: Simd>(s: S, scores: &mut [f32; TILE_KEYS], strips: Range<usize>, seen: Range<usize>) -> f32 {
    let hidden = s.splat(f32::NEG_INFINITY);
    let mut best = hidden;
    for (i, scores) in scores.as_chunks_mut::<LANES>().0[strips.clone()].iter_mut().enumerate() {
        let first = (strips.start + i) * LANES;
        let mut score = s.load(scores);
        if first < seen.start || seen.end < first + LANES {
            let below = |end: usize| ((1u32 << end.saturating_sub(first).min(LANES)) - 1) as u16;
            score = s.select(below(seen.end) & !below(seen.start), score, hidden);
            s.store(score, scores);
        }
        best = s.max(score, best);
    }
    s.largest(best)
}

/// Turns scores into `exp(score - largest)` and adds them to the sums so far, times `rescale`.
#[inline(always)]
fn exponentiate<S: Simd>(
    s: S,
    scores: &mut [f32; TILE_KEYS],
    strips: Range<usize>,
    largest: f32,
    rescale: f32,
    sums: &mut [f32; LANES],
) {
    let mut total = s.zero();
    for scores in &mut scores.as_chunks_mut::<LANES>().0[strips] {
        let weight = s.exp(s.sub(s.load(scores), s.splat(largest)));
        s.store(weight, scores);
        total = s.add(total, weight);
    }
    s.store(s.fma(s.load(sums), s.splat(rescale), total), sums);
}
