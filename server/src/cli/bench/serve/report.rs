//! What a load showed.

use std::time::Duration;

use serde::Serialize;

use super::client::Answered;

/// Bounds within which an answer is a good one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) max_ttft_ms: f64,
    pub(super) max_tpot_ms: f64,
}

/// Percentiles of a time, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Percentiles {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// A line of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) bench: &'static str,
    pub(super) model: String,
    /// Requests a second that were asked for; none where all were sent at once.
    pub(super) request_rate: Option<f64>,
    num_requests: usize,
    num_failed: usize,
    /// From the first sending to the last answer.
    elapsed_s: f64,
    requests_per_s: f64,
    prompt_tokens: u64,
    output_tokens: u64,
    output_tokens_per_s: f64,
    /// From just before a request was sent to its first piece.
    ttft_ms: Percentiles,
    /// Between two pieces of a stream.
    itl_ms: Percentiles,
    /// From the first piece to the last, over the tokens but the first.
    tpot_ms: Percentiles,
    e2e_ms: Percentiles,
    /// Share of all requests that were answered within the bounds.
    good_share: f64,
    /// Requests a second that were.
    goodput: f64,
    /// How late requests were sent at most, by the client's own fault.
    max_late_ms: f64,
    /// User and system time of the server's process for each token generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_cpu_us_per_token: Option<f64>,
}

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) answers: Vec<Answered>,
    pub(super) num_failed: usize,
    pub(super) prompt_tokens: u64,
    pub(super) elapsed: Duration,
    pub(super) max_late: Duration,
    pub(super) server_cpu: Option<Duration>,
}

impl Measured {
    pub(super) fn report(&self, model: &str, request_rate: Option<f64>, bounds: Bounds) -> Report {
        let answers = &self.answers;
        let elapsed_s = self.elapsed.as_secs_f64().max(1e-9);
        let output_tokens: u64 = answers.iter().map(|answer| answer.output_tokens).sum();
        let num_requests = answers.len() + self.num_failed;
        let is_good = |answer: &&Answered| {
            ttft(answer).is_some_and(|ms| ms <= bounds.max_ttft_ms)
                && tpot(answer).is_none_or(|ms| ms <= bounds.max_tpot_ms)
        };
        let num_good = answers.iter().filter(is_good).count() as f64;
        Report {
            bench: "serve",
            model: model.to_owned(),
            request_rate,
            num_requests,
            num_failed: self.num_failed,
            elapsed_s,
            requests_per_s: answers.len() as f64 / elapsed_s,
            prompt_tokens: self.prompt_tokens,
            output_tokens,
            output_tokens_per_s: output_tokens as f64 / elapsed_s,
            ttft_ms: Percentiles::of(self.ttfts()),
            itl_ms: Percentiles::of(self.itls()),
            tpot_ms: Percentiles::of(self.tpots()),
            e2e_ms: Percentiles::of(self.e2es()),
            good_share: num_good / num_requests.max(1) as f64,
            goodput: num_good / elapsed_s,
            max_late_ms: ms(self.max_late),
            server_cpu_us_per_token: self
                .server_cpu
                .map(|cpu| cpu.as_secs_f64() * 1e6 / output_tokens.max(1) as f64),
        }
    }

    /// Milliseconds to the first piece.
    pub(super) fn ttfts(&self) -> impl Iterator<Item = f64> {
        self.answers.iter().filter_map(ttft)
    }

    /// Milliseconds between two pieces.
    pub(super) fn itls(&self) -> impl Iterator<Item = f64> {
        self.answers.iter().flat_map(|answer| answer.pieces.windows(2)).map(|pair| ms(pair[1] - pair[0]))
    }

    /// Milliseconds of each token after the first.
    pub(super) fn tpots(&self) -> impl Iterator<Item = f64> {
        self.answers.iter().filter_map(tpot)
    }

    /// Milliseconds to the end.
    pub(super) fn e2es(&self) -> impl Iterator<Item = f64> {
        self.answers.iter().map(|answer| ms(answer.end))
    }
}

impl Percentiles {
    /// Of any number of values; of none, all are 0.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let Some(&max) = values.last() else { return Self::default() };
        // The smallest value that so many are not above.
        let at = |share: f64| values[((values.len() as f64 * share).ceil() as usize).max(1) - 1];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max }
    }
}

fn ttft(answer: &Answered) -> Option<f64> {
    answer.pieces.first().copied().map(ms)
}

fn tpot(answer: &Answered) -> Option<f64> {
    let (first, last) = (answer.pieces.first()?, answer.pieces.last()?);
    (answer.output_tokens > 1).then(|| ms(*last - *first) / (answer.output_tokens - 1) as f64)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(pieces_ms: &[u64], output_tokens: u64) -> Answered {
        let pieces: Vec<_> = pieces_ms.iter().copied().map(Duration::from_millis).collect();
        Answered { end: *pieces.last().expect("some"), pieces, output_tokens }
    }

    #[test]
    fn times_are_those_of_the_pieces() {
        let measured = Measured {
            answers: vec![answer(&[10, 20, 40], 4), answer(&[600, 610], 2)],
            num_failed: 2,
            elapsed: Duration::from_secs(2),
            ..Measured::default()
        };
        let report = measured.report("m", None, Bounds { max_ttft_ms: 500.0, max_tpot_ms: 30.0 });
        assert_eq!((report.ttft_ms.p50, report.ttft_ms.max), (10.0, 600.0));
        assert_eq!((report.tpot_ms.p50, report.itl_ms.p50, report.itl_ms.max), (10.0, 10.0, 20.0));
        assert_eq!((report.good_share, report.goodput, report.num_requests), (0.25, 0.5, 4));
        assert_eq!(report.output_tokens_per_s, 3.0);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let percentiles = Percentiles::of((1..=200).map(f64::from));
        assert_eq!((percentiles.p50, percentiles.p90, percentiles.p99), (100.0, 180.0, 198.0));
        assert_eq!(Percentiles::of([3.0].into_iter()).p99, 3.0);
        assert_eq!(Percentiles::of(std::iter::empty()), Percentiles::default());
    }
}
