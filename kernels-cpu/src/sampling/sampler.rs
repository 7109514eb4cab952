//! From the logits of a row to its token.

use parking_lot::Mutex;
use quire_kernels::NO_TOKEN;
use quire_kernels::random::DrawKey;

use super::cut::{Cut, Goal, Row, Weights};
use super::draw::{Draw, Drawn};
use super::summary::Summary;
use crate::Isa;
use crate::access::{Rows, RowsMut, View};
use crate::pool::Pool;

/// Tokens of a draw that are worth a thread's while: some ten microseconds of random numbers.
const GRAIN_TOKENS: usize = 4096;

/// Tokens that most often hold the mass of a top-p.
const LIKELY_TOKENS: usize = 700;

/// How a row is sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    /// Greedy unless it is above 0.
    pub(super) temperature: f32,
    /// 0 is off.
    pub(super) top_k: usize,
    /// 1 is off.
    pub(super) top_p: f32,
    /// 0 is off.
    pub(super) min_p: f32,
    pub(super) key: DrawKey,
}

/// The state's columns, and the rows that they are read for.
pub(super) struct Columns<'a> {
    slots: &'a [i32],
    positions: &'a [i32],
    temperature: &'a [f32],
    top_k: &'a [i32],
    top_p: &'a [f32],
    min_p: &'a [f32],
    keys: Rows<'a, u32>,
}

impl<'a> Columns<'a> {
    /// From views of slots, positions, temperatures, top-k, top-p, min-p and keys.
    pub(super) fn new(views: [View<'a>; 7]) -> Self {
        let [slots, positions, temperature, top_k, top_p, min_p, keys] = views;
        let [temperature, top_p, min_p] = [temperature, top_p, min_p].map(|p| p.slice::<f32>());
        let [slots, positions, top_k] = [slots, positions, top_k].map(|p| p.slice::<i32>());
        Self { slots, positions, temperature, top_k, top_p, min_p, keys: keys.rows() }
    }

    /// The parameters of a row; none where it is padding.
    pub(super) fn of(&self, row: usize) -> Option<Parameters> {
        let slot = usize::try_from(self.slots[row]).ok()?;
        Some(Parameters {
            temperature: self.temperature[slot],
            top_k: usize::try_from(self.top_k[slot]).unwrap_or(0),
            top_p: self.top_p[slot],
            min_p: self.min_p[slot],
            key: draw_key(self.keys.row(slot), self.positions[row]),
        })
    }
}

/// The key of a draw, from its row of the state's keys.
fn draw_key(key: &[u32], position: i32) -> DrawKey {
    let seed = u64::from(key[0]) | u64::from(key[1]) << 32;
    DrawKey { seed, sequence: key[2], position: position as u32 }
}

/// Samples a token for each row of `logits` into `out`, `[1, rows]`; 0 for those without parameters. Rows are
/// shared out to the threads, or, where there are too few, the tokens of each.
pub(super) fn sample_rows(
    isa: Isa,
    pool: &Pool,
    logits: Rows<'_, f32>,
    parameters: impl Fn(usize) -> Option<Parameters> + Sync,
    out: &RowsMut<'_, i32>,
) {
    let sample_into = |row: usize, threads: Option<&Pool>| {
        let sampled = |p| Sampler::new(isa, logits.row(row), p).sample(threads);
        let token = parameters(row).map_or(0, |p| sampled(p).map_or(NO_TOKEN, |token| token as i32));
        // SAFETY: each row is visited once.
        unsafe { out.slice_mut(0, row..row + 1)[0] = token };
    };
    let num_rows = out.columns();
    if num_rows < pool.threads() {
        (0..num_rows).for_each(|row| sample_into(row, Some(pool)));
    } else {
        pool.for_each(num_rows, 1, |rows| rows.for_each(|row| sample_into(row, None)));
    }
}

/// Leaves in each row of `logits` what a draw is made from; greedy rows, those without parameters and those
/// without a token stay as they are.
pub(super) fn filter_rows(
    isa: Isa,
    pool: &Pool,
    logits: &mut RowsMut<'_, f32>,
    parameters: impl Fn(usize) -> Option<Parameters> + Sync,
) {
    logits.for_each(pool, 1, |row, logits| {
        let Some(parameters) = parameters(row).filter(|p| p.temperature > 0.0) else { return };
        let sampler = Sampler::new(isa, logits, parameters);
        if !sampler.summary.is_sound() {
            return;
        }
        let cut = sampler.cut();
        for (token, logit) in logits.iter_mut().enumerate() {
            let is_kept = cut.keeps_one(*logit, token);
            *logit = if is_kept { *logit / parameters.temperature } else { f32::NEG_INFINITY };
        }
    });
}

/// One row.
pub(super) struct Sampler<'a> {
    row: Row<'a>,
    parameters: Parameters,
    summary: Summary,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(isa: Isa, logits: &'a [f32], parameters: Parameters) -> Self {
        let summary = Summary::of(isa, logits);
        let weights = Weights::new(summary.max(), parameters.temperature);
        Self { row: Row { isa, logits, weights }, parameters, summary }
    }

    /// The token, none where a logit is NaN or plus infinity, or none is finite; with the help of threads where a draw
    /// is worth it.
    pub(super) fn sample(&self, threads: Option<&Pool>) -> Option<usize> {
        if !self.summary.is_sound() {
            return None;
        }
        let logits = self.row.logits;
        let best = self.summary.argmax(logits);
        let temperature = self.parameters.temperature;
        if temperature.is_nan() || temperature <= 0.0 {
            return Some(best);
        }
        let (Row { isa, weights, .. }, cut) = (self.row, self.cut());
        let draw = Draw { isa, logits, weights, temperature, cut, key: self.parameters.key };
        let best = draw.score(best as u32);
        let drawn = match threads {
            Some(pool) if cut == Cut::NONE => draw_shared(pool, &draw, best),
            _ => draw.among(0..logits.len(), best),
        };
        Some(drawn.token as usize)
    }

    /// What min-p, top-k and top-p keep.
    fn cut(&self) -> Cut {
        let Parameters { temperature, top_k, top_p, min_p, .. } = self.parameters;
        let max = self.summary.max();
        let mut cut = Cut::NONE;
        if min_p > 0.0 {
            cut.value = max + temperature * min_p.ln();
        }
        if (1..self.row.logits.len()).contains(&top_k) {
            let from = self.summary.reached_by(top_k).max(cut.value);
            // Ties with the last one stay.
            cut.value = self.row.cut(from, from, Goal::Count(top_k)).value;
        }
        if top_p < 1.0 {
            let mass = self.row.mass(cut);
            // All the tokens that weigh less than this do not make up what may be left out.
            let negligible = (1.0 - f64::from(top_p)) * mass / self.row.logits.len() as f64;
            let from = (max + temperature * (negligible.ln() as f32 - 1e-3)).max(cut.value);
            let guess = self.summary.reached_by(LIKELY_TOKENS);
            cut = self.row.cut(from, guess, Goal::Mass(f64::from(top_p) * mass));
        }
        cut
    }
}

/// A draw from all tokens, cut among the threads. The better one of two does not depend on their order.
fn draw_shared(pool: &Pool, draw: &Draw<'_>, best: Drawn) -> Drawn {
    let found = Mutex::new(best);
    pool.for_each(draw.logits.len(), GRAIN_TOKENS, |tokens| {
        let drawn = draw.among(tokens, best);
        let mut found = found.lock();
        *found = found.or(drawn);
    });
    found.into_inner()
}
