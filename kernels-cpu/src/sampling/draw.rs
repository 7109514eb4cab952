//! The draw: the kept token with the largest `logit / temperature + noise`.
//!
//! The noise of a token is a function of 32 random bits that grows with them, and no more than `-ln(1 - u)`,
//! where `u` is the bits as a number in (0, 1): since `-ln u >= 1 - u`. So a token whose bits are not large
//! enough to beat the best one so far is passed over without its logarithms; the others, a handful, are scored
//! by the plain formula. What is drawn is what the formula alone would draw.

use std::ops::Range;

use quire_kernels::random::{self, DrawKey};

use super::cut::{Cut, Weights};
use crate::Isa;
use crate::lanes::{self, LANES, Program, Simd};

/// The noise is less.
const MAX_NOISE: f32 = 23.0;

/// What the bounds may be off by from rounding, and more.
const SLACK: f32 = 1e-3;

/// A drawn token and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) token: u32,
    pub(super) score: f32,
}

impl Drawn {
    /// The better one: the higher score, then the lower id.
    pub(super) fn or(self, other: Self) -> Self {
        let better = other.score > self.score || (other.score == self.score && other.token < self.token);
        if better { other } else { self }
    }
}

/// A row to draw from.
#[derive(Clone, Copy)]
pub(super) struct Draw<'a> {
    pub(super) isa: Isa,
    pub(super) logits: &'a [f32],
    pub(super) weights: Weights,
    pub(super) temperature: f32,
    pub(super) cut: Cut,
    pub(super) key: DrawKey,
}

impl Draw<'_> {
    /// The score of a token.
    pub(super) fn score(&self, token: u32) -> Drawn {
        let logit = self.logits[token as usize];
        let max = self.weights.max;
        let exponent = if logit == max { 0.0 } else { (logit - max) / self.temperature };
        Drawn { token, score: exponent + random::gumbel(self.key, token) }
    }

    /// The better one of `best` and what is drawn from a range of tokens that starts at a whole vector.
    pub(super) fn among(&self, tokens: Range<usize>, best: Drawn) -> Drawn {
        lanes::run(self.isa, Among { draw: *self, tokens, best })
    }
}

struct Among<'a> {
    draw: Draw<'a>,
    tokens: Range<usize>,
    best: Drawn,
}

impl Program for Among<'_> {
    type Output = Drawn;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Drawn {
        let Self { draw, tokens, mut best } = self;
        for (i, logits) in draw.logits[tokens.clone()].chunks(LANES).enumerate() {
            let logits = match logits.first_chunk() {
                Some(logits) => s.load(logits),
                None => s.load_head(logits, f32::NAN),
            };
            let first = tokens.start + i * LANES;
            let mut bits = draw.cut.keeps(s, logits, first);
            if bits == 0 {
                continue;
            }
            let lead = s.add(draw.weights.exponents(s, logits), s.splat(SLACK - best.score));
            bits &= s.gt(lead, s.splat(-MAX_NOISE));
            if bits == 0 {
                continue;
            }
            bits &= s.ge(s.exp(lead), s.load(&complements(draw.key, first as u32)));
            while bits != 0 {
                best = best.or(draw.score(first as u32 + bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
        best
    }
}

/// `1 - u` of consecutive tokens, `u` being the uniform number behind their noise.
#[inline(always)]
fn complements(key: DrawKey, first: u32) -> [f32; LANES] {
    let mut complements = [0.0; LANES];
    for (c, bits) in complements.iter_mut().zip(random_bits(key, first)) {
        *c = (!bits as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    }
    complements
}

/// The first word of [`random::philox4x32`] for consecutive tokens. Words lie in the lower halves of 64 bits,
/// the upper halves of which are ignored: so a round is two multiplications, two shifts and two exclusive ors.
#[inline(always)]
fn random_bits(key: DrawKey, first: u32) -> [u32; LANES] {
    const LOW: u64 = 0xffff_ffff;
    let mut c0 = [u64::from(key.sequence); LANES];
    let mut c1 = [u64::from(key.position); LANES];
    let mut c2 = [0; LANES];
    let mut c3 = [0; LANES];
    let (mut k0, mut k1) = (key.seed as u32, (key.seed >> 32) as u32);
    for (lane, c2) in c2.iter_mut().enumerate() {
        *c2 = u64::from(first.wrapping_add(lane as u32));
    }
    for _ in 0..10 {
        for i in 0..LANES {
            let p0 = (c0[i] & LOW) * 0xD251_1F53;
            let p1 = (c2[i] & LOW) * 0xCD9E_8D57;
            c0[i] = (p1 >> 32) ^ c1[i] ^ u64::from(k0);
            c1[i] = p1;
            c2[i] = (p0 >> 32) ^ c3[i] ^ u64::from(k1);
            c3[i] = p0;
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    let mut bits = [0; LANES];
    for (bits, c0) in bits.iter_mut().zip(c0) {
        *bits = c0 as u32;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn random_bits_are_those_of_the_definition() {
        let key = DrawKey { seed: 0x1234_5678_9abc_def0, sequence: 3, position: 77 };
        for first in [0, 16, 1000, u32::MAX - 20] {
            for (lane, bits) in random_bits(key, first).into_iter().enumerate() {
                let counter = [3, 77, first.wrapping_add(lane as u32), 0];
                assert_eq!(bits, random::philox4x32(counter, [0x9abc_def0, 0x1234_5678])[0]);
            }
        }
    }

    /// Draws many times, and compares with the plain formula for every token.
    fn check(logits: &[f32], temperature: f32, cut: Cut) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = Weights::new(max, temperature);
        for seed in 0..20 {
            let key = DrawKey { seed: seed << 31, sequence: 1, position: seed as u32 };
            let draws = Isa::available().into_iter().map(|isa| {
                let draw = Draw { isa, logits, weights, temperature, cut, key };
                let best = logits.iter().position(|&l| l == max).unwrap();
                (draw, draw.among(0..logits.len(), draw.score(best as u32)))
            });
            for (draw, drawn) in draws {
                let kept = (0..logits.len() as u32).filter(|&token| {
                    let logit = logits[token as usize];
                    logit > cut.value || (logit == cut.value && token <= cut.last_tie)
                });
                let plain = kept.map(|token| draw.score(token)).reduce(Drawn::or).unwrap();
                assert_eq!(drawn, plain, "seed {seed} at {temperature}");
            }
        }
    }

    #[test]
    fn what_is_drawn_is_what_the_plain_formula_draws() {
        let logits: Vec<f32> = noise(3001, 11).iter().map(|x| 10.0 * x).collect();
        let flat: Vec<f32> = logits.iter().map(|x| x * 1e-3).collect();
        let equal = vec![0.25; 1000];
        for logits in [&logits, &flat, &equal] {
            for temperature in [1e-7, 0.3, 1.0, 7.0] {
                check(logits, temperature, Cut::NONE);
                check(logits, temperature, Cut { value: logits[17], last_tie: 17 });
            }
        }
        check(&[f32::NAN, f32::NEG_INFINITY, -5.0, f32::NAN, f32::INFINITY, f32::INFINITY], 0.5, Cut::NONE);
    }
}
