//! Sampling: every token that is drawn must be one that the f64 formula draws, up to rounding.

use super::bench::{Bench, Rng, widen};
use super::report::At;
use crate::math::sampling::{self as oracle, Filter, Penalties};
use crate::random::DrawKey;
use crate::{NO_TOKEN, Result, SamplingRows, SamplingState, Tensor};

const VOCABS: [usize; 5] = [1, 7, 33, 1000, 49_152];

/// How far two scores may lie apart and yet be confused by f32 arithmetic, relative to their size.
const SCORE_TOLERANCE: f64 = 1e-5;

/// One row to sample.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) logits: Vec<f32>,
    pub(super) filter: Filter,
    pub(super) penalties: Penalties,
    pub(super) key: DrawKey,
}

pub(super) const PLAIN: Filter = Filter { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
const NO_PENALTIES: Penalties = Penalties { presence: 0.0, frequency: 0.0, repetition: 1.0 };

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    check_greedy(bench)?;
    for vocab in VOCABS {
        check_filters(bench, vocab)?;
    }
    check_known_sets(bench)?;
    check_filtered(bench)?;
    check_what_is_no_number(bench)?;
    check_tiny_temperature(bench)?;
    check_distribution(bench)
}

impl Row {
    fn new(logits: Vec<f32>, filter: Filter, seed: u64) -> Self {
        let key = DrawKey { seed, sequence: 0, position: 17 };
        Self { logits, filter, penalties: NO_PENALTIES, key }
    }

    pub(super) fn random(rng: &mut Rng, vocab: usize, filter: Filter) -> Self {
        let logits = (0..vocab).map(|_| 3.0 * rng.normal() as f32).collect();
        let key =
            DrawKey { seed: rng.next(), sequence: rng.below(4) as u32, position: rng.below(9000) as u32 };
        Self { logits, filter, penalties: NO_PENALTIES, key }
    }

    /// What the formula draws.
    fn formula(&self) -> i32 {
        self.filter.sample(&widen(&self.logits), self.key).map_or(NO_TOKEN, |token| token as i32)
    }

    /// Whether `token` is what the formula draws, give or take rounding.
    fn admits(&self, token: i32) -> bool {
        let logits = widen(&self.logits);
        let Ok(token) = usize::try_from(token) else { return false };
        if self.filter.temperature == 0.0 || token >= logits.len() {
            return Some(token) == self.filter.sample(&logits, self.key);
        }
        self.edges().into_iter().any(|filter| {
            let kept = filter.kept(&logits);
            let score = |token: usize| self.filter.score(&logits, logits[kept[0]], self.key, token);
            let best = kept.iter().map(|&t| score(t)).fold(f64::NEG_INFINITY, f64::max);
            kept.contains(&token) && score(token) >= best - SCORE_TOLERANCE * (1.0 + best.abs())
        })
    }
}

impl Row {
    /// The filter, and as it may be with rounding: a token at the edge of the kept set may be in it or not.
    fn edges(&self) -> [Filter; 3] {
        [0.0, -1e-4, 1e-4].map(|by| {
            let (top_p, min_p) = (self.filter.top_p * (1.0 + by), self.filter.min_p * (1.0 - by));
            Filter { top_p, min_p, ..self.filter }
        })
    }

    /// What is left to draw from; of the ways that rounding allows, the one that keeps as many as `filtered` does.
    fn filtered_like(&self, filtered: &[f32]) -> Vec<f64> {
        let logits = widen(&self.logits);
        if self.filter.temperature == 0.0 {
            return logits;
        }
        let num_kept = |row: &[f64]| row.iter().filter(|l| **l > f64::NEG_INFINITY).count();
        let ways = self.edges().map(|filter| filter.filtered(&logits));
        let like = ways.iter().find(|way| num_kept(way) == num_kept(&widen(filtered)));
        like.unwrap_or(&ways[0]).clone()
    }
}

/// Rows on the device, spread over shuffled slots, with a padded row at the end.
struct Laid {
    state: SamplingState,
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
    num_rows: usize,
}

impl Laid {
    fn new(bench: &mut Bench<'_>, rows: &[Row]) -> Result<Self> {
        let vocab = rows[0].logits.len();
        let slots: Vec<usize> = bench.rng.permutation(rows.len() + 3)[..rows.len()].to_vec();
        let state = write_state(bench, rows, &slots, vocab)?;
        let n = rows.len() + 1;
        let mut logits: Vec<f32> = rows.iter().flat_map(|r| &r.logits).copied().collect();
        logits.resize(n * vocab, f32::NAN);
        let device_slots: Vec<i32> = slots.iter().map(|&s| s as i32).chain([-1]).collect();
        let positions: Vec<i32> = rows.iter().map(|r| r.key.position as i32).chain([0]).collect();
        Ok(Self {
            state,
            logits: bench.f32s(&[n, vocab], &logits)?,
            slots: bench.i32s(&[n], &device_slots)?,
            positions: bench.i32s(&[n], &positions)?,
            num_rows: n,
        })
    }

    fn rows(&self) -> SamplingRows<'_> {
        SamplingRows { logits: &self.logits, slots: &self.slots, positions: &self.positions }
    }
}

/// Samples the rows.
fn sample(bench: &mut Bench<'_>, rows: &[Row]) -> Result<Vec<i32>> {
    let laid = Laid::new(bench, rows)?;
    let out = bench.i32s(&[laid.num_rows], &vec![-7; laid.num_rows])?;
    let sampling = bench.kernels.sampling();
    bench.ctx.step(|ctx| sampling.sample(ctx, &laid.state, &laid.rows(), &out))?;
    let mut tokens = bench.read_i32(&out)?;
    bench.report.equal(At { op: "sample.padding", case: "last row" }, &[tokens.pop()], &[Some(0)]);
    Ok(tokens)
}

/// The parameters of each row in its slot; the other slots hold nonsense.
pub(super) fn write_state(
    bench: &mut Bench<'_>,
    rows: &[Row],
    slots: &[usize],
    vocab: usize,
) -> Result<SamplingState> {
    let num_slots = rows.len() + 3;
    let state = SamplingState::new(bench.kernels.device().as_ref(), num_slots, vocab)?;
    let by_slot = |slot: usize| slots.iter().position(|&s| s == slot).map(|row| &rows[row]);
    let floats = |f: &dyn Fn(&Row) -> f64| -> Vec<f32> {
        (0..num_slots).map(|slot| by_slot(slot).map_or(f32::NAN, |row| f(row) as f32)).collect()
    };
    let top_k: Vec<i32> =
        (0..num_slots).map(|slot| by_slot(slot).map_or(-1, |r| r.filter.top_k as i32)).collect();
    let keys: Vec<u32> = (0..num_slots)
        .flat_map(|slot| {
            by_slot(slot).map_or([0; 3], |r| [r.key.seed as u32, (r.key.seed >> 32) as u32, r.key.sequence])
        })
        .collect();
    let ctx = &mut bench.ctx;
    ctx.write(&state.temperature, &floats(&|r| r.filter.temperature))?;
    ctx.write(&state.top_p, &floats(&|r| r.filter.top_p))?;
    ctx.write(&state.min_p, &floats(&|r| r.filter.min_p))?;
    ctx.write(&state.presence_penalty, &floats(&|r| r.penalties.presence))?;
    ctx.write(&state.frequency_penalty, &floats(&|r| r.penalties.frequency))?;
    ctx.write(&state.repetition_penalty, &floats(&|r| r.penalties.repetition))?;
    ctx.write(&state.top_k, &top_k)?;
    ctx.write(&state.keys, &keys)?;
    Ok(state)
}

fn check_greedy(bench: &mut Bench<'_>) -> Result<()> {
    let greedy = Filter { temperature: 0.0, ..PLAIN };
    for vocab in VOCABS {
        let mut rows: Vec<Row> = (0..5).map(|_| Row::random(&mut bench.rng, vocab, greedy)).collect();
        // The best token several times over, and a row in which only the last token is allowed.
        for at in [vocab / 3, vocab / 2, vocab - 1] {
            rows[0].logits[at] = 50.0;
        }
        rows[1].logits.fill(f32::NEG_INFINITY);
        rows[1].logits[vocab - 1] = -3.0;
        rows[2].logits.fill(0.25);
        let expected: Vec<i32> = rows.iter().map(|r| oracle::ranked(&widen(&r.logits))[0] as i32).collect();
        let tokens = sample(bench, &rows)?;
        bench.report.equal(
            At { op: "sample.greedy", case: &format!("vocabulary of {vocab}") },
            &tokens,
            &expected,
        );
    }
    Ok(())
}

/// Rows with every filter, alone and beside others.
fn rows_of_all_filters(bench: &mut Bench<'_>, vocab: usize) -> Vec<Row> {
    let filter = |i: usize| Filter {
        temperature: [1.0f32, 0.7, 0.0, 1.5][i % 4].into(),
        top_k: [0, 1, 5, 40, vocab + 9][i % 5],
        top_p: [1.0f32, 0.9, 0.5, 1e-4][i / 2 % 4].into(),
        min_p: [0.0f32, 0.05, 0.0, 0.4, 1.0][i / 3 % 5].into(),
    };
    (0..24).map(|i| Row::random(&mut bench.rng, vocab, filter(i))).collect()
}

fn check_filters(bench: &mut Bench<'_>, vocab: usize) -> Result<()> {
    let rows = rows_of_all_filters(bench, vocab);
    let together = sample(bench, &rows)?;
    for (i, (row, &token)) in rows.iter().zip(&together).enumerate() {
        let case = format!("row {i} of vocabulary {vocab}, {:?}", row.filter);
        let verdict = if row.admits(token) { token } else { row.formula() };
        bench.report.equal(At { op: "sample", case: &case }, &[token], &[verdict]);
    }
    for i in [0, 2, 7, 13] {
        let alone = sample(bench, &rows[i..=i])?;
        let case = format!("row {i} of vocabulary {vocab}");
        bench.report.equal(At { op: "sample.alone", case: &case }, &alone, &together[i..=i]);
    }
    Ok(())
}

/// Over many seeds each token of the kept set appears, and none outside of it.
fn check_known_sets(bench: &mut Bench<'_>) -> Result<()> {
    let logits = vec![1.0, 3.0, 2.5, 2.5, 2.4, 0.0];
    let cases: [(&str, Filter, &[i32]); 6] = [
        ("ties at top-k stay", Filter { top_k: 2, ..PLAIN }, &[1, 2, 3]),
        ("top-k of one is greedy", Filter { top_k: 1, ..PLAIN }, &[1]),
        ("top-p keeps the best token", Filter { top_p: f64::from(1e-6f32), ..PLAIN }, &[1]),
        ("top-p stops where its mass is reached", Filter { top_p: 0.5, ..PLAIN }, &[1, 2]),
        ("min-p of one keeps the best token", Filter { min_p: 1.0, ..PLAIN }, &[1]),
        ("min-p cuts before top-p", Filter { min_p: 0.5, top_p: f64::from(0.99f32), ..PLAIN }, &[1, 2, 3, 4]),
    ];
    for (case, filter, expected) in cases {
        let rows: Vec<Row> = (0..200).map(|seed| Row::new(logits.clone(), filter, seed)).collect();
        let mut seen = sample(bench, &rows)?;
        seen.sort_unstable();
        seen.dedup();
        bench.report.equal(At { op: "sample.kept", case }, &seen, expected);
    }
    Ok(())
}

/// What is left to draw from: the tokens that stay, give or take those at an edge, over the temperature.
fn check_filtered(bench: &mut Bench<'_>) -> Result<()> {
    for vocab in VOCABS {
        let mut rows = rows_of_all_filters(bench, vocab);
        rows[0].logits[0] = f32::NEG_INFINITY;
        rows[1].logits[vocab / 2] = 4.0;
        rows[1].logits[vocab - 1] = 4.0;
        let laid = Laid::new(bench, &rows)?;
        let sampling = bench.kernels.sampling();
        bench.ctx.step(|ctx| sampling.filter(ctx, &laid.state, &laid.rows()))?;
        let filtered = bench.read_f32(&laid.logits)?;
        for (i, (row, filtered)) in rows.iter().zip(filtered.chunks(vocab)).enumerate() {
            let expected = row.filtered_like(filtered);
            let case = format!("row {i} of vocabulary {vocab}, {:?}", row.filter);
            bench.report.compare(At { op: "filter", case: &case }, filtered, &expected, |i| {
                if expected[i].is_finite() { 1e-6 * (1.0 + expected[i].abs()) } else { 0.0 }
            });
        }
    }
    Ok(())
}

/// A row with NaN or plus infinity has no token, however good the others are; nor has one in which all is forbidden.
fn check_what_is_no_number(bench: &mut Bench<'_>) -> Result<()> {
    let greedy = Filter { temperature: 0.0, ..PLAIN };
    let all = Filter { temperature: 0.7, top_k: 5, top_p: 0.5, min_p: f64::from(0.1f32) };
    let filters = [greedy, PLAIN, all, Filter { top_p: 0.5, ..PLAIN }, Filter { top_k: 3, ..PLAIN }];
    for vocab in VOCABS {
        let mut rows = Vec::new();
        for filter in filters {
            for (rest, best) in [
                (f32::NAN, f32::NAN),
                (f32::NEG_INFINITY, f32::NEG_INFINITY),
                (f32::NAN, f32::NEG_INFINITY),
                (f32::NAN, -3.0),
                (-3.0, f32::NAN),
                (f32::NEG_INFINITY, f32::NAN),
                (f32::NEG_INFINITY, -3.0),
                (f32::NAN, f32::INFINITY),
                (1.0, f32::INFINITY),
            ] {
                let mut logits = vec![rest; vocab];
                logits[vocab / 2] = best;
                rows.push(Row::new(logits, filter, 11));
            }
        }
        let expected: Vec<i32> = rows.iter().map(Row::formula).collect();
        let tokens = sample(bench, &rows)?;
        let case = format!("vocabulary of {vocab}");
        bench.report.equal(At { op: "sample.no_number", case: &case }, &tokens, &expected);
    }
    Ok(())
}

/// BR-32: a quotient by a tiny temperature must not overflow.
fn check_tiny_temperature(bench: &mut Bench<'_>) -> Result<()> {
    let mut rows = Vec::new();
    for temperature in [0.0f32, 1e-30, 1e-7, 1e-4, 0.009] {
        for top_p in [1.0, 1e-4] {
            for scale in [1.0, 1e4] {
                let logits = [3.0, 5.0, -2.0, 4.0, -9.0].map(|l: f32| l * scale).to_vec();
                let filter = Filter { temperature: temperature.into(), top_p, ..PLAIN };
                rows.push(Row::new(logits, filter, 7));
            }
        }
    }
    let tokens = sample(bench, &rows)?;
    bench.report.equal(At { op: "sample.tiny_temperature", case: "BR-32" }, &tokens, &vec![1; rows.len()]);
    Ok(())
}

/// Pearson's chi-square over draws at many positions. Seeds are fixed, so a backend passes always or never.
fn check_distribution(bench: &mut Bench<'_>) -> Result<()> {
    const DRAWS: usize = 8192;
    let logits = vec![0.0, 1.0, 0.5, -1.0, 2.0, 0.1, -0.5, 1.5];
    let mut counts = [0.0; 8];
    for batch in 0..DRAWS / 512 {
        let mut rows = vec![Row::new(logits.clone(), PLAIN, 42); 512];
        for (i, row) in rows.iter_mut().enumerate() {
            row.key.position = (batch * 512 + i) as u32;
        }
        for token in sample(bench, &rows)? {
            counts[token as usize] += 1.0;
        }
    }
    let expected = oracle::log_softmax(&widen(&logits)).into_iter().map(|l| l.exp() * DRAWS as f64);
    let chi_square: f64 = counts.iter().zip(expected).map(|(n, e)| (n - e) * (n - e) / e).sum();
    // Seven degrees of freedom: 29.9 is passed by one seed in ten thousand.
    bench.report.compare(
        At { op: "sample.distribution", case: "chi-square of 8192 draws" },
        &[chi_square as f32],
        &[0.0],
        |_| 29.9,
    );
    Ok(())
}
