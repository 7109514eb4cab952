//! Which tokens stay: those above a cut through the order of logits.
//!
//! Every filter keeps the best tokens of an order (the higher logit first, ties by the lower id), so what stays
//! is told by one logit and one id. The cut is found without sorting the row: values that are certainly in and
//! certainly out enclose a band, which is halved by passes over the row until it fits in an array.

use crate::Isa;
use crate::lanes::{self, LANES, Program, Simd};

/// Tokens that a band may hold to be looked at one by one.
const MAX_CANDIDATES: usize = 2048;

/// What stays: logits above `value`, and those equal to it up to the token `last_tie`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) value: f32,
    pub(super) last_tie: u32,
}

impl Cut {
    /// Everything stays.
    pub(super) const NONE: Self = Self { value: f32::NEG_INFINITY, last_tie: u32::MAX };

    /// Whether the logit of a token stays.
    pub(super) fn keeps_one(self, logit: f32, token: usize) -> bool {
        logit > self.value || (logit == self.value && token <= self.last_tie as usize)
    }

    /// One bit for each of the logits of the tokens from `first` on: whether it stays.
    #[inline(always)]
    pub(super) fn keeps<S: Simd>(self, s: S, logits: S::V, first: usize) -> u16 {
        let value = s.splat(self.value);
        let ties = (self.last_tie as usize + 1).saturating_sub(first).min(LANES);
        s.gt(logits, value) | (s.ge(logits, value) & ((1u32 << ties) - 1) as u16)
    }
}

/// What a logit weighs: `exp((logit - max) / temperature)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) max: f32,
    /// Of the temperature; finite.
    inverse: f32,
}

impl Weights {
    pub(super) fn new(max: f32, temperature: f32) -> Self {
        Self { max, inverse: (1.0 / temperature).min(f32::MAX) }
    }

    /// `(logit - max) / temperature`, but for rounding; 0 for the largest one even if it is infinite.
    #[inline(always)]
    pub(super) fn exponents<S: Simd>(self, s: S, logits: S::V) -> S::V {
        let max = s.splat(self.max);
        let below = s.mul(s.sub(logits, max), s.splat(self.inverse));
        s.select(s.ge(logits, max), s.zero(), below)
    }
}

/// How far down the order a cut goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    /// So many tokens.
    Count(usize),
    /// So much weight.
    Mass(f64),
}

/// Logits from a value on, below another.
#[derive(Clone, Copy, Debug)]
struct Band {
    from: f32,
    /// None: however large.
    below: Option<f32>,
}

impl Band {
    #[inline(always)]
    fn holds<S: Simd>(self, s: S, logits: S::V) -> u16 {
        // Nothing is at least a NaN.
        s.ge(logits, s.splat(self.from)) & !s.ge(logits, s.splat(self.below.unwrap_or(f32::NAN)))
    }
}

/// A row of logits.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) isa: Isa,
    pub(super) logits: &'a [f32],
    pub(super) weights: Weights,
}

impl Row<'_> {
    /// The weight of what stays.
    pub(super) fn mass(&self, cut: Cut) -> f64 {
        // Ties are all in: only a cut by mass leaves some out, and it is the last one.
        self.measure(Band { from: cut.value, below: None }, Measured::Mass).mass
    }

    /// How many logits are at least `value`.
    pub(super) fn count_from(&self, value: f32) -> usize {
        self.measure(Band { from: value, below: None }, Measured::Count).count
    }

    /// Fills `tokens` with those that stay, in ascending order, as many as there is room for; returns how many.
    pub(super) fn kept(&self, cut: Cut, tokens: &mut [i32]) -> usize {
        lanes::run(self.isa, Kept { row: *self, cut, tokens })
    }

    /// The smallest set of best tokens that reaches the goal, among the logits from `from` on; all of those where
    /// they do not reach it. A good `guess` of the cut's value saves passes over the row.
    pub(super) fn cut(&self, from: f32, guess: f32, goal: Goal) -> Cut {
        let mut search = Search { row: self, band: Band { from, below: None }, goal };
        let mut candidates = [Candidate::default(); MAX_CANDIDATES];
        if guess > from {
            search.narrow(guess);
        }
        for step in 0.. {
            if let Some(len) = self.collect(search.band, &mut candidates) {
                let all = Cut { value: search.band.from, ..Cut::NONE };
                return last_of(&mut candidates[..len], search.goal).map_or(all, Candidate::cut);
            }
            match middle(search.band.from, search.band.below.unwrap_or(self.weights.max.next_up()), step) {
                Some(middle) => search.narrow(middle),
                None => break,
            }
        }
        self.cut_ties(search.band.from, search.goal)
    }

    /// The cut among equal logits.
    fn cut_ties(&self, value: f32, goal: Goal) -> Cut {
        let weight = lanes::run(self.isa, WeightOf { weights: self.weights, logit: value });
        let count = match goal {
            Goal::Count(count) => count,
            Goal::Mass(mass) => (mass / f64::from(weight)).ceil() as usize,
        };
        let ties = self.logits.iter().enumerate().filter(|(_, l)| **l == value);
        let last = ties.take(count.max(1)).last();
        Cut { value, last_tie: last.map_or(u32::MAX, |(token, _)| token as u32) }
    }

    fn measure(&self, band: Band, measured: Measured) -> Measure {
        lanes::run(self.isa, MeasureBand { row: *self, band, measured })
    }

    /// The tokens of a band in ascending order, or none if they are too many.
    fn collect(&self, band: Band, into: &mut [Candidate; MAX_CANDIDATES]) -> Option<usize> {
        lanes::run(self.isa, Collect { row: *self, band, into })
    }
}

/// Where the last token of a cut is: in the band, so far down it as the goal says.
struct Search<'a> {
    row: &'a Row<'a>,
    band: Band,
    goal: Goal,
}

impl Search<'_> {
    /// Goes on above or below a value.
    fn narrow(&mut self, value: f32) {
        let upper = Band { from: value, ..self.band };
        match self.goal.left_after(self.row.measure(upper, self.goal.measured())) {
            None => self.band = upper,
            Some(left) => (self.band.below, self.goal) = (Some(value), left),
        }
    }
}

/// A float between the two, none if there is no third one. By turns it halves what is between them as numbers,
/// which is soon where the logits are, and as bit patterns, which comes to an end in 32 steps of them.
fn middle(low: f32, high: f32, step: usize) -> Option<f32> {
    let between = |value: f32| (value > low && value < high).then_some(value);
    if step.is_multiple_of(2)
        && let Some(value) = between(0.5 * low + 0.5 * high)
    {
        return Some(value);
    }
    let middle = (place(low) + place(high)) >> 1;
    let sign = if middle < 0 { 0x8000_0000 } else { 0 };
    between(f32::from_bits(middle.unsigned_abs() as u32 | sign))
}

/// An integer as large among integers as the float is among floats.
fn place(x: f32) -> i64 {
    let bits = i64::from(x.to_bits() & 0x7fff_ffff);
    if x.is_sign_negative() { -bits } else { bits }
}

/// What is asked about a band.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Measured {
    /// The number of tokens alone.
    Count,
    /// Their weight as well.
    Mass,
}

/// What a band holds.
#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    count: usize,
    mass: f64,
}

impl Goal {
    fn measured(self) -> Measured {
        match self {
            Self::Count(_) => Measured::Count,
            Self::Mass(_) => Measured::Mass,
        }
    }

    /// What is left of it after so much, or none if that reaches it.
    fn left_after(self, measure: Measure) -> Option<Self> {
        match self {
            Self::Count(count) if measure.count < count => Some(Self::Count(count - measure.count)),
            Self::Mass(mass) if measure.mass < mass => Some(Self::Mass(mass - measure.mass)),
            _ => None,
        }
    }
}

/// A token of a band.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    logit: f32,
    token: u32,
    weight: f32,
}

impl Candidate {
    /// The cut below it.
    fn cut(self) -> Cut {
        Cut { value: self.logit, last_tie: self.token }
    }

    /// Whether it comes before the other one: the higher logit, then the lower id.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

/// The last of the best candidates that reach the goal; none where all of them do not. By halves: each is put in
/// its place before its sum decides which one is looked at further.
fn last_of(candidates: &mut [Candidate], goal: Goal) -> Option<Candidate> {
    let (mut candidates, mut goal) = (candidates, goal);
    while candidates.len() > 1 {
        let half = candidates.len() / 2;
        candidates.select_nth_unstable_by(half, Candidate::order);
        let (best, rest) = candidates.split_at_mut(half);
        match goal.left_after(Measure::of(best)) {
            None => candidates = best,
            Some(left) => (candidates, goal) = (rest, left),
        }
    }
    let last = candidates.first()?;
    goal.left_after(Measure::of(std::slice::from_ref(last))).is_none().then_some(*last)
}

impl Measure {
    fn of(candidates: &[Candidate]) -> Self {
        Self { count: candidates.len(), mass: candidates.iter().map(|c| f64::from(c.weight)).sum() }
    }
}

/// Elements whose weights are summed in f32 before they are added to the sum in f64.
const CHUNK: usize = 64 * LANES;

struct MeasureBand<'a> {
    row: Row<'a>,
    band: Band,
    measured: Measured,
}

impl Program for MeasureBand<'_> {
    type Output = Measure;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Measure {
        let Self { row: Row { logits, weights, .. }, band, measured } = self;
        let mut total = Measure::default();
        for chunk in logits.chunks(CHUNK) {
            let mut sums = s.zero();
            for logits in chunk.chunks(LANES) {
                let logits = load(s, logits);
                let bits = band.holds(s, logits);
                total.count += bits.count_ones() as usize;
                if bits != 0 && measured == Measured::Mass {
                    let weight = s.exp(weights.exponents(s, logits));
                    sums = s.add(sums, s.select(bits, weight, s.zero()));
                }
            }
            total.mass += f64::from(s.sum(sums));
        }
        total
    }
}

/// At most a vector of logits, the missing ones as NaN, which no band and no cut holds.
#[inline(always)]
fn load<S: Simd>(s: S, logits: &[f32]) -> S::V {
    match logits.first_chunk() {
        Some(logits) => s.load(logits),
        None => s.load_head(logits, f32::NAN),
    }
}

struct Kept<'a, 't> {
    row: Row<'a>,
    cut: Cut,
    tokens: &'t mut [i32],
}

impl Program for Kept<'_, '_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let mut len = 0;
        for (i, logits) in self.row.logits.chunks(LANES).enumerate() {
            let mut bits = self.cut.keeps(s, load(s, logits), i * LANES);
            while bits != 0 {
                let Some(token) = self.tokens.get_mut(len) else { return len };
                *token = (i * LANES) as i32 + bits.trailing_zeros() as i32;
                len += 1;
                bits &= bits - 1;
            }
        }
        len
    }
}

struct Collect<'a, 'c> {
    row: Row<'a>,
    band: Band,
    into: &'c mut [Candidate; MAX_CANDIDATES],
}

impl Program for Collect<'_, '_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Option<usize> {
        let mut len = 0;
        for (i, tokens) in self.row.logits.chunks(LANES).enumerate() {
            let logits = load(s, tokens);
            let mut bits = self.band.holds(s, logits);
            if bits == 0 {
                continue;
            }
            if len + bits.count_ones() as usize > MAX_CANDIDATES {
                return None;
            }
            let weights = s.lanes(s.exp(self.row.weights.exponents(s, logits)));
            while bits != 0 {
                let lane = bits.trailing_zeros() as usize;
                let token = (i * LANES + lane) as u32;
                self.into[len] = Candidate { logit: tokens[lane], token, weight: weights[lane] };
                len += 1;
                bits &= bits - 1;
            }
        }
        Some(len)
    }
}

struct WeightOf {
    weights: Weights,
    logit: f32,
}

impl Program for WeightOf {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        s.lanes(s.exp(self.weights.exponents(s, s.splat(self.logit))))[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    fn row(isa: Isa, logits: &[f32], temperature: f32) -> Row<'_> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Row { isa, logits, weights: Weights::new(max, temperature) }
    }

    /// The tokens in order.
    fn ranked(logits: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        order
    }

    fn check_count(logits: &[f32], count: usize) {
        let last = ranked(logits)[count - 1];
        let want = Cut { value: logits[last], last_tie: last as u32 };
        for (isa, guess) in Isa::available().into_iter().zip([f32::NEG_INFINITY, want.value, 0.1]) {
            let got = row(isa, logits, 1.0).cut(f32::NEG_INFINITY, guess, Goal::Count(count));
            assert_eq!(got, want, "{count} of {} on {isa}", logits.len());
        }
    }

    #[test]
    fn a_cut_by_count_is_where_sorting_puts_it() {
        let spread = noise(30_000, 9);
        let coarse: Vec<f32> = spread.iter().map(|x| (x * 4.0).round()).collect();
        let equal = vec![1.5; 10_000];
        let wide: Vec<f32> = spread.iter().map(|x| x * x * x * 1e30).collect();
        for logits in [&spread, &coarse, &equal, &wide] {
            for count in [1, 2, 50, 2048, 2049, 9_999] {
                check_count(logits, count);
            }
        }
        check_count(&[3.0], 1);
        check_count(&[1.0, 2.0, 2.0], 2);
    }

    fn check_mass(logits: &[f32], temperature: f32, share: f64) {
        for isa in Isa::available() {
            let row = row(isa, logits, temperature);
            let total = row.mass(Cut::NONE);
            let cut = row.cut(f32::NEG_INFINITY, logits[0], Goal::Mass(share * total));
            let max = f64::from(row.weights.max);
            let weight = |token: usize| ((f64::from(logits[token]) - max) / f64::from(temperature)).exp();
            let order = ranked(logits);
            let all: f64 = order.iter().map(|&token| weight(token)).sum();
            assert!((total / all - 1.0).abs() < 1e-6, "a mass of {total} for {all}");
            let last = order.iter().position(|&token| token as u32 == cut.last_tie).unwrap();
            assert_eq!(logits[order[last]], cut.value);
            let before: f64 = order[..last].iter().map(|&token| weight(token)).sum();
            let slack = 1e-6 * all;
            assert!(before < share * all + slack && before + weight(order[last]) > share * all - slack);
        }
    }

    #[test]
    fn a_cut_by_mass_is_the_smallest_set() {
        let spread: Vec<f32> = noise(20_000, 10).iter().map(|x| 8.0 * x).collect();
        let coarse: Vec<f32> = spread.iter().map(|x| x.round()).collect();
        let equal = vec![-2.0; 10_000];
        for logits in [&spread, &coarse, &equal] {
            for temperature in [0.3, 1.0, 50.0] {
                for share in [1e-9, 0.1, 0.5, 0.9, 0.999] {
                    check_mass(logits, temperature, share);
                }
            }
        }
    }

    #[test]
    fn the_middle_halves_what_is_between_two_floats() {
        for (low, high) in [(f32::NEG_INFINITY, 20.0f32), (-1.0, 1.0), (1.0, 1.5), (-0.0, f32::MIN_POSITIVE)]
        {
            let (mut low, mut steps) = (low, 0);
            while let Some(middle) = middle(low, high, steps) {
                (low, steps) = (middle, steps + 1);
            }
            assert!(low.next_up() >= high && steps <= 64, "{low} {high} after {steps}");
        }
    }
}
