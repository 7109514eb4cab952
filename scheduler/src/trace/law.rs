//! Any number of requests like those of a trace.

use super::{Arrivals, Trace, TraceRequest};
use crate::testing::Rng;

impl Trace {
    /// A trace of `num_requests` requests by the law of this one: lengths, tenant and prefix are drawn together from its
    /// requests, with replacement, and gaps are exponential with its mean. The same seed gives the same trace.
    pub fn drawn(&self, num_requests: usize, seed: u64) -> Self {
        if self.requests.is_empty() {
            return self.clone();
        }
        let mut rng = Rng::new(seed);
        let mut arrival = 0.0;
        let mean_gap = self.mean_gap();
        let mut draw = || {
            arrival += mean_gap * exponential(&mut rng);
            let place = rng.range(0..u32::try_from(self.requests.len()).unwrap_or(u32::MAX));
            TraceRequest { arrival, ..self.requests[place as usize].clone() }
        };
        let requests = (0..num_requests).map(|_| draw()).collect();
        Self { requests, tenants: self.tenants.clone(), arrivals: self.arrivals }
    }

    /// This trace, and behind it requests drawn by its law, up to `num_requests` in all.
    #[must_use]
    pub fn lengthened(&self, num_requests: usize, seed: u64) -> Self {
        let num_more = num_requests.saturating_sub(self.requests.len());
        let end = self.requests.last().map_or(0.0, |last| last.arrival);
        let behind = |request: TraceRequest| TraceRequest { arrival: end + request.arrival, ..request };
        let mut long = self.clone();
        long.requests.extend(self.drawn(num_more, seed).requests.into_iter().map(behind));
        long
    }

    /// The same requests with gaps of a Poisson process between them, in place of the times that they have. The same seed
    /// gives the same gaps.
    #[must_use]
    pub fn with_gaps(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut arrival = 0.0;
        let mut next = |request: &TraceRequest| {
            arrival += exponential(&mut rng);
            TraceRequest { arrival, ..request.clone() }
        };
        let requests = self.requests.iter().map(&mut next).collect();
        Self { requests, tenants: self.tenants.clone(), arrivals: Arrivals::MeanGaps }
    }

    fn mean_gap(&self) -> f64 {
        match (self.arrivals, self.requests.last()) {
            (Arrivals::Seconds, Some(last)) => last.arrival / self.requests.len() as f64,
            _ => 1.0,
        }
    }
}

/// A number of the exponential distribution with mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    let uniform = ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_trace_with_the_means_of_the_law() {
        let law = Trace::parse_csv("arrival_s,prompt_tokens,output_tokens\n1,100,10\n2,300,30\n").unwrap();
        let drawn = law.drawn(10_000, 7);
        assert_eq!(drawn, law.drawn(10_000, 7));
        assert_ne!(drawn, law.drawn(10_000, 8));
        let mean = |of: fn(&TraceRequest) -> f64| drawn.requests.iter().map(of).sum::<f64>() / 1e4;
        assert!((mean(|request| request.prompt_tokens.into()) - 200.0).abs() < 5.0);
        assert!((drawn.requests[9_999].arrival / 1e4 - 1.0).abs() < 0.05);
        assert!(drawn.requests.iter().all(|request| request.prompt_tokens == 10 * request.output_tokens));
    }
}
