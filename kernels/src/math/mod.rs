//! What the operations mean, in f64 over plain slices: the oracle of the conformance suite, and all that the
//! reference backend computes with. Each function handles one row and is the textbook formula, nothing more.

pub(crate) mod moe;
pub(crate) mod sampling;

use std::f64::consts::FRAC_2_PI;

/// `x · w`, summed from left to right.
pub(crate) fn dot(x: &[f64], w: &[f64]) -> f64 {
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

/// `x / sqrt(mean(x²) + eps) · w`.
pub(crate) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean_square = dot(x, x) / x.len() as f64;
    let inverse = 1.0 / (mean_square + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * inverse * w).collect()
}

/// `silu(gate) · up` of a row that holds the gate and then the up projection.
pub(crate) fn silu_mul(gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}

/// Rotates one head in place. `cos_sin` holds the cosines of the position and then its sines; `pair(i)` names
/// the two elements that the `i`-th angle turns.
pub(crate) fn rotate(head: &mut [f64], cos_sin: &[f64], pair: impl Fn(usize) -> (usize, usize)) {
    let (cos, sin) = cos_sin.split_at(cos_sin.len() / 2);
    for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
        let (a, b) = pair(i);
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos - y * sin;
        head[b] = x * sin + y * cos;
    }
}

/// `gelu(gate) · up` with the hyperbolic tangent, of such a row.
pub(crate) fn gelu_tanh_mul(gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    let gelu = |x: f64| x / 2.0 * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x)).tanh());
    gate.iter().zip(up).map(|(g, u)| gelu(*g) * u).collect()
}

/// `cap · tanh(x / cap)`.
pub(crate) fn soft_cap(x: f64, cap: f64) -> f64 {
    cap * (x / cap).tanh()
}

/// How the scores of attention are made.
#[derive(Clone, Copy)]
pub(crate) struct Scores {
    pub(crate) scale: f64,
    pub(crate) soft_cap: Option<f64>,
}

impl Scores {
    pub(crate) fn new(scale: f32, soft_cap: Option<f32>) -> Self {
        Self { scale: f64::from(scale), soft_cap: soft_cap.map(f64::from) }
    }

    fn score(self, q: &[f64], k: &[f64]) -> f64 {
        let score = self.scale * dot(q, k);
        self.soft_cap.map_or(score, |cap| soft_cap(score, cap))
    }
}

/// `softmax(scores) v` for one query head; `keys` and `values` are `[num_visible, head_dim]`.
pub(crate) fn attend(q: &[f64], keys: &[f64], values: &[f64], scores: Scores) -> Vec<f64> {
    let scores: Vec<f64> = keys.chunks(q.len()).map(|k| scores.score(q, k)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (weight, value) in weights.iter().zip(values.chunks(q.len())) {
        for (out, v) in out.iter_mut().zip(value) {
            *out += weight / total * v;
        }
    }
    out
}

/// The positions that a query at `position` sees: itself and those before it, as far as the window reaches.
pub(crate) fn visible(position: usize, window: Option<usize>) -> std::ops::Range<usize> {
    let end = position + 1;
    end - window.unwrap_or(end).min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_the_query_itself() {
        assert_eq!(visible(5, Some(1)), 5..6);
        assert_eq!(visible(5, Some(3)), 3..6);
        assert_eq!(visible(1, Some(3)), 0..2);
        assert_eq!(visible(5, None), 0..6);
    }

    #[test]
    fn attention_over_one_key_is_its_value() {
        assert_eq!(attend(&[1.0, 2.0], &[3.0, 4.0], &[5.0, 6.0], Scores::new(0.5, None)), [5.0, 6.0]);
    }

    #[test]
    fn a_soft_cap_is_never_passed_and_leaves_small_numbers() {
        assert!((soft_cap(1e-3, 50.0) - 1e-3).abs() < 1e-12);
        assert!((soft_cap(1e6, 50.0) - 50.0).abs() < 1e-12 && (soft_cap(-1e6, 50.0) + 50.0).abs() < 1e-12);
    }

    #[test]
    fn a_rotation_keeps_the_length() {
        let mut head = [3.0, 0.0, 4.0, 0.0];
        rotate(&mut head, &[0.6, 1.0, 0.8, 0.0], |i| (i, i + 2));
        assert!((head.iter().map(|x| x * x).sum::<f64>() - 25.0).abs() < 1e-12);
        assert!((head[0] - (3.0 * 0.6 - 4.0 * 0.8)).abs() < 1e-12);
    }
}
