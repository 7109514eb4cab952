//! Log-probabilities of chosen tokens, and of the best ones.

use quire_kernels::TokenValues;

use super::cut::{Cut, Goal, Row, Weights};
use super::summary::Summary;
use crate::Isa;

/// Fills a row of values: of `token_ids[0]`, the chosen token, and of the best ones, which are put behind it, the highest
/// first. Returns the rank of the chosen one.
pub(super) fn of_row(
    isa: Isa,
    logits: &[f32],
    told: TokenValues,
    token_ids: &mut [i32],
    values: &mut [f32],
) -> usize {
    let summary = Summary::of(isa, logits);
    let row = Row { isa, logits, weights: Weights::new(summary.max(), 1.0) };
    best_tokens(&row, &summary, &mut token_ids[1..]);
    for (value, token) in values.iter_mut().zip(&*token_ids) {
        *value = usize::try_from(*token).map_or(f32::NEG_INFINITY, |token| number(logits[token]));
    }
    if told == TokenValues::Logprobs {
        to_logprobs(values, summary.max(), log_total(&row));
    }
    usize::try_from(token_ids[0]).map_or(0, |chosen| rank(&row, number(logits[chosen])))
}

/// Logits of a row become log-probabilities, given the largest one and the logarithm of all weights.
fn to_logprobs(values: &mut [f32], max: f32, total: f64) {
    for value in values {
        *value = match *value {
            f32::NEG_INFINITY => f32::NEG_INFINITY,
            logit if logit == max => -total as f32,
            logit => (f64::from(logit) - f64::from(max) - total) as f32,
        };
    }
}

/// How many tokens have a logit at least this one.
fn rank(row: &Row<'_>, logit: f32) -> usize {
    if logit == f32::NEG_INFINITY { row.logits.len() } else { row.count_from(logit).max(1) }
}

/// The logarithm of the sum of all weights, of which the largest one is 1.
fn log_total(row: &Row<'_>) -> f64 {
    row.mass(Cut::NONE).max(1.0).ln()
}

/// A logit as it counts: a NaN as minus infinity.
fn number(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Fills `best` with the best tokens, the highest logit first, ties by the lower id.
fn best_tokens(row: &Row<'_>, summary: &Summary, best: &mut [i32]) {
    let (logits, num_best) = (row.logits, best.len());
    assert!(num_best <= logits.len(), "no more best tokens than there are tokens");
    if num_best == 0 {
        return;
    }
    let from = summary.reached_by(num_best);
    let found = row.kept(row.cut(from, from, Goal::Count(num_best)), best);
    let rest = (0..logits.len()).filter(|&token| logits[token].is_nan());
    for (best, token) in best[found..].iter_mut().zip(rest) {
        *best = token as i32;
    }
    let logit = |token: i32| number(logits[token as usize]);
    best.sort_unstable_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, noise};

    fn check(logits: &[f32], chosen: usize, num_best: usize) {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for isa in Isa::available() {
            let mut token_ids = vec![-7; 1 + num_best];
            token_ids[0] = chosen as i32;
            let mut logprobs = vec![f32::NAN; 1 + num_best];
            let rank = of_row(isa, logits, TokenValues::Logprobs, &mut token_ids, &mut logprobs);
            assert_eq!(rank, logits.iter().filter(|&&l| l >= logits[chosen]).count());
            assert!(token_ids[1..].iter().zip(&order).all(|(got, want)| *got as usize == *want));
            let want = |i: usize| f64::from(logits[token_ids[i] as usize]) - total.ln();
            assert_close(&logprobs, want, 1e-6);
        }
    }

    #[test]
    fn chosen_and_best_tokens_have_their_log_probabilities() {
        let logits: Vec<f32> = noise(5000, 12).iter().map(|x| 9.0 * x).collect();
        let coarse: Vec<f32> = logits.iter().map(|x| x.round()).collect();
        for logits in [&logits, &coarse] {
            for num_best in [0, 1, 5, 20, 3000, 5000] {
                check(logits, 77, num_best);
            }
        }
        check(&[1.5], 0, 1);
    }

    #[test]
    fn rows_without_numbers_do_no_harm() {
        for (logits, logprob) in [
            ([f32::NAN, 1.0, f32::NEG_INFINITY], f32::NEG_INFINITY),
            ([f32::NAN; 3], f32::NEG_INFINITY),
            ([1.0, f32::INFINITY, f32::NAN], f32::NEG_INFINITY),
        ] {
            let (mut token_ids, mut logprobs) = ([0, 0, 0, 0], [f32::NAN; 4]);
            of_row(Isa::best(), &logits, TokenValues::Logprobs, &mut token_ids, &mut logprobs);
            let mut best = token_ids[1..].to_vec();
            best.sort_unstable();
            assert_eq!((best, logprobs[0]), (vec![0, 1, 2], logprob));
            assert!(logprobs.iter().all(|l| !l.is_nan()));
        }
    }
}
