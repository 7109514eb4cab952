//! Mixture of experts.

use crate::RouteWeights;

/// The best `top_k` of a row of logits, the best first, with their weights.
pub(crate) fn route(logits: &[f64], top_k: usize, weights: RouteWeights) -> Vec<(usize, f64)> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let mut routes: Vec<(usize, f64)> =
        logits.iter().map(|logit| (logit - largest).exp() / total).enumerate().collect();
    routes.sort_by(|(a, p), (b, q)| q.total_cmp(p).then(a.cmp(b)));
    routes.truncate(top_k);
    if weights == RouteWeights::Normalized {
        let kept: f64 = routes.iter().map(|(_, weight)| weight).sum();
        routes.iter_mut().for_each(|(_, weight)| *weight /= kept);
    }
    routes
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equals_in_order() {
        let logits = [0.0, 2f64.ln(), 0.0, 0.0];
        let routes = route(&logits, 2, RouteWeights::Probabilities);
        assert_eq!(routes.iter().map(|route| route.0).collect::<Vec<_>>(), [1, 0]);
        assert!((routes[0].1 - 0.4).abs() < 1e-12 && (routes[1].1 - 0.2).abs() < 1e-12);
        let normalized = route(&logits, 2, RouteWeights::Normalized);
        assert!((normalized[0].1 - 2.0 / 3.0).abs() < 1e-12);
    }
}
