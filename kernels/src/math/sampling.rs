//! Sampling by sorting the whole vocabulary.

use std::cmp::Ordering;

use crate::random::{DrawKey, gumbel};
use crate::{IN_PROMPT, random};

/// What decides which tokens stay and which is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    pub(crate) temperature: f64,
    pub(crate) top_k: usize,
    pub(crate) top_p: f64,
    pub(crate) min_p: f64,
}

/// The penalties of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Penalties {
    pub(crate) presence: f64,
    pub(crate) frequency: f64,
    pub(crate) repetition: f64,
}

impl Filter {
    /// The tokens that stay, the best first; ties by the lower id.
    pub(crate) fn kept(&self, logits: &[f64]) -> Vec<usize> {
        let logits = &numbers(logits)[..];
        let mut order = ranked(logits);
        let best = logits[order[0]];
        let scaled = |token: usize| scaled(logits[token], best, self.temperature);
        if self.min_p > 0.0 {
            order.retain(|&token| scaled(token) >= self.min_p.ln());
        }
        if (1..order.len()).contains(&self.top_k) {
            let threshold = logits[order[self.top_k - 1]];
            order.retain(|&token| logits[token] >= threshold);
        }
        if self.top_p < 1.0 {
            let mass: Vec<f64> = order.iter().map(|&token| scaled(token).exp()).collect();
            let wanted = self.top_p * mass.iter().sum::<f64>();
            let mut before = 0.0;
            let reached = mass.iter().position(|m| {
                before += m;
                before >= wanted
            });
            order.truncate(reached.map_or(order.len(), |last| last + 1));
        }
        order
    }

    /// The logits that a draw is made from: those that stay, divided by the temperature, minus infinity for the others. A
    /// row without a token stays as it is.
    pub(crate) fn filtered(&self, logits: &[f64]) -> Vec<f64> {
        if !is_sound(logits) {
            return logits.to_vec();
        }
        let mut filtered = vec![f64::NEG_INFINITY; logits.len()];
        for token in self.kept(logits) {
            filtered[token] = numbers(&logits[token..=token])[0] / self.temperature;
        }
        filtered
    }

    /// What the draw maximizes.
    pub(crate) fn score(&self, logits: &[f64], best: f64, key: DrawKey, token: usize) -> f64 {
        scaled(logits[token], best, self.temperature) + f64::from(gumbel(key, token as u32))
    }

    /// The sampled token; none where a logit is NaN or plus infinity, or none is finite.
    pub(crate) fn sample(&self, logits: &[f64], key: random::DrawKey) -> Option<usize> {
        if !is_sound(logits) {
            return None;
        }
        if self.temperature == 0.0 {
            return Some(ranked(logits)[0]);
        }
        let kept = self.kept(logits);
        let best = logits[kept[0]];
        let score = |token: usize| self.score(logits, best, key, token);
        kept.into_iter().min_by(|&a, &b| descending(score(a), score(b)).then(a.cmp(&b)))
    }
}

impl Penalties {
    /// The logit of a token whose entry in the counts is `count`.
    pub(crate) fn apply(&self, logit: f64, count: i32) -> f64 {
        let in_output = count & (IN_PROMPT - 1);
        let mut logit = logit;
        if count != 0 {
            logit = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        }
        if in_output > 0 {
            logit -= self.frequency * f64::from(in_output) + self.presence;
        }
        logit
    }
}

/// The logits with those tokens forbidden whose bit of the mask is not set.
pub(crate) fn masked(logits: &[f64], mask: &[u32]) -> Vec<f64> {
    let is_allowed = |token: usize| mask[token / 32] >> (token % 32) & 1 == 1;
    let masked = |(token, &logit)| if is_allowed(token) { logit } else { f64::NEG_INFINITY };
    logits.iter().enumerate().map(masked).collect()
}

/// Whether a token can be chosen: a logit is finite, and none is NaN or plus infinity.
fn is_sound(logits: &[f64]) -> bool {
    logits[ranked(logits)[0]].is_finite() && !logits.iter().any(|logit| logit.is_nan())
}

/// All tokens, the best first; ties by the lower id. A NaN ranks last.
pub(crate) fn ranked(logits: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| descending(logits[a], logits[b]));
    order
}

/// The logits as they count: a NaN as minus infinity.
pub(crate) fn numbers(logits: &[f64]) -> Vec<f64> {
    logits.iter().map(|&l| if l.is_nan() { f64::NEG_INFINITY } else { l }).collect()
}

/// Natural log-probabilities; minus infinity for what counts as that.
pub(crate) fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let logits = numbers(logits);
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let below = |l: f64| if l == f64::NEG_INFINITY { l } else { scaled(l, max, 1.0) };
    let total: f64 = logits.iter().map(|&l| below(l).exp()).sum();
    logits.iter().map(|&l| if l == f64::NEG_INFINITY { l } else { below(l) - total.ln() }).collect()
}

/// How many tokens have a logit at least that of `token`.
pub(crate) fn rank(logits: &[f64], token: usize) -> usize {
    let logits = numbers(logits);
    logits.iter().filter(|&&l| l >= logits[token]).count()
}

/// `(logit - best) / temperature`: shifting by the best keeps the quotient finite for tiny temperatures.
fn scaled(logit: f64, best: f64, temperature: f64) -> f64 {
    if logit == best { 0.0 } else { (logit - best) / temperature }
}

fn descending(a: f64, b: f64) -> Ordering {
    let key = |x: f64| if x.is_nan() { f64::NEG_INFINITY } else { x };
    key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        /// Laws of the kept set: the best token is in it, the ranking is not skipped within it, nobody outside has
        /// a better logit, and loosening a filter removes nobody.
        #[test]
        fn the_kept_set_is_a_head_of_the_ranking(
            logits in prop::collection::vec((-40i8..40).prop_map(|l| f64::from(l) / 8.0), 1..40),
            temperature in 0.05f64..3.0,
            top_k in 0usize..50,
            top_p in 0.001f64..=1.0,
            min_p in 0.0f64..=1.0,
        ) {
            let filter = Filter { temperature, top_k, top_p, min_p };
            let kept = filter.kept(&logits);
            prop_assert!(!kept.is_empty());
            prop_assert_eq!(&kept[..], &ranked(&logits)[..kept.len()]);
            let looser = [
                Filter { top_k: 0, ..filter },
                Filter { top_p: 1.0, ..filter },
                Filter { min_p: 0.0, top_p: 1.0, ..filter },
            ];
            for looser in looser {
                prop_assert!(looser.kept(&logits).len() >= kept.len());
            }
            let key = DrawKey { seed: 5, sequence: 0, position: 1 };
            let token = filter.sample(&logits, key);
            prop_assert!(token.is_some_and(|token| kept.contains(&token)));
        }
    }

    const ALL: Filter = Filter { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    #[test]
    fn ties_at_the_top_k_threshold_stay() {
        let logits = [1.0, 3.0, 2.0, 2.0, 0.0];
        assert_eq!(Filter { top_k: 2, ..ALL }.kept(&logits), [1, 2, 3]);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_the_mass() {
        let logits = [0.5f64, 0.3, 0.2].map(f64::ln);
        assert_eq!(Filter { top_p: 0.4, ..ALL }.kept(&logits), [0]);
        assert_eq!(Filter { top_p: 0.6, ..ALL }.kept(&logits), [0, 1]);
        assert_eq!(Filter { top_p: 1e-9, ..ALL }.kept(&logits), [0], "the best token is always in");
    }

    #[test]
    fn a_row_with_what_is_no_number_has_no_token() {
        let key = DrawKey { seed: 5, sequence: 0, position: 1 };
        let forbidden = [f64::NEG_INFINITY; 4];
        for filter in
            [ALL, Filter { temperature: 0.0, ..ALL }, Filter { top_k: 2, top_p: 0.5, min_p: 0.1, ..ALL }]
        {
            assert_eq!(filter.sample(&forbidden, key), None);
            let mut logits = forbidden;
            logits[2] = -3.0;
            assert_eq!(filter.sample(&logits, key), Some(2));
            for wrong in [f64::INFINITY, f64::NAN] {
                logits[3] = wrong;
                assert_eq!(filter.sample(&logits, key), None, "{wrong}");
            }
        }
        assert_eq!(log_softmax(&[f64::NAN, 1.0]), [f64::NEG_INFINITY, 0.0]);
        assert_eq!(log_softmax(&[f64::NAN; 2]), [f64::NEG_INFINITY; 2]);
    }

    #[test]
    fn min_p_is_relative_to_the_best() {
        let logits = [0.5f64, 0.3, 0.2].map(f64::ln);
        assert_eq!(Filter { min_p: 0.5, ..ALL }.kept(&logits), [0, 1]);
    }

    #[test]
    fn penalties_count_the_output_only_where_they_should() {
        let penalties = Penalties { presence: 0.5, frequency: 0.25, repetition: 2.0 };
        assert_eq!(penalties.apply(4.0, 0), 4.0);
        assert_eq!(penalties.apply(4.0, IN_PROMPT), 2.0);
        assert_eq!(penalties.apply(-4.0, 2), -9.0);
        assert_eq!(penalties.apply(4.0, IN_PROMPT | 1), 1.25);
    }
}
