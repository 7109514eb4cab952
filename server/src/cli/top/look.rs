//! Looks at a running engine, as `/live/events` has them.

use std::collections::VecDeque;

use serde::Deserialize;

/// Looks that numbers of now are made of: some seconds.
const WINDOW: usize = 6;

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Look {
    time_ms: u64,
    pub(super) stats: Stats,
    /// Outputs that have not ended; `requests` holds the first of them.
    pub(super) num_requests: usize,
    pub(super) requests: Vec<Row>,
}

/// The engine's numbers, as far as they are shown.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Stats {
    pub(super) num_running: u64,
    num_waiting: u64,
    pub(super) num_swapped: u64,
    pub(super) num_live_blocks: u64,
    pub(super) num_cached_blocks: u64,
    pub(super) num_free_blocks: u64,
    num_prompt_tokens: u64,
    num_generation_tokens: u64,
    num_prefix_query_tokens: u64,
    num_prefix_hit_tokens: u64,
    num_steps: u64,
    pub(super) num_preemptions: u64,
    distributions: Distributions,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Distributions {
    ttft_s: Sum,
    inter_token_s: Sum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
struct Sum {
    count: u64,
    sum: f64,
}

/// One output of a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Row {
    pub(super) request_id: String,
    pub(super) index: u64,
    pub(super) status: String,
    pub(super) age_s: f64,
    pub(super) why: String,
}

/// What happens in a second, as of the last looks; means are none where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) generated: f64,
    pub(super) of_prompts: f64,
    pub(super) steps: f64,
    pub(super) ttft_ms: Option<f64>,
    pub(super) tpot_ms: Option<f64>,
    /// The share of looked-up tokens that the prefix cache had.
    pub(super) hits: Option<f64>,
}

/// The last looks, the newest at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks(VecDeque<Look>);

impl Stats {
    /// Those that wait with their blocks on the host left out.
    pub(super) fn num_waiting(&self) -> u64 {
        self.num_waiting.saturating_sub(self.num_swapped)
    }

    pub(super) fn num_blocks(&self) -> u64 {
        self.num_live_blocks + self.num_cached_blocks + self.num_free_blocks
    }
}

impl Row {
    pub(super) fn name(&self) -> String {
        if self.index == 0 { self.request_id.clone() } else { format!("{} #{}", self.request_id, self.index) }
    }

    /// Why it waits, without its own name.
    pub(super) fn reason(&self) -> &str {
        let rest = self.why.strip_prefix("request ").and_then(|rest| rest.strip_prefix(&self.request_id));
        let rest = rest.map_or(self.why.as_str(), str::trim_start);
        rest.strip_prefix(&format!("output {} ", self.index)).unwrap_or(rest)
    }
}

impl Looks {
    pub(super) fn push(&mut self, look: Look) {
        // A server that was started anew counts from 0.
        if self.last().is_some_and(|last| look.stats.num_steps < last.stats.num_steps) {
            self.0.clear();
        }
        self.0.push_back(look);
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
    }

    pub(super) fn last(&self) -> Option<&Look> {
        self.0.back()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// None before the second look.
    pub(super) fn rates(&self) -> Option<Rates> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let seconds = last.time_ms.saturating_sub(first.time_ms) as f64 / 1e3;
        (seconds > 0.0).then(|| Rates::between(&first.stats, &last.stats, seconds))
    }
}

impl Rates {
    fn between(first: &Stats, last: &Stats, seconds: f64) -> Self {
        let grown = |of: fn(&Stats) -> u64| of(last).saturating_sub(of(first)) as f64;
        let mean_ms = |of: fn(&Distributions) -> Sum| {
            let (before, now) = (of(&first.distributions), of(&last.distributions));
            let count = now.count.saturating_sub(before.count);
            (count > 0).then(|| 1e3 * (now.sum - before.sum) / count as f64)
        };
        let queried = grown(|stats| stats.num_prefix_query_tokens);
        Self {
            generated: grown(|stats| stats.num_generation_tokens) / seconds,
            of_prompts: grown(|stats| stats.num_prompt_tokens) / seconds,
            steps: grown(|stats| stats.num_steps) / seconds,
            ttft_ms: mean_ms(|all| all.ttft_s),
            tpot_ms: mean_ms(|all| all.inter_token_s),
            hits: (queried > 0.0).then(|| grown(|stats| stats.num_prefix_hit_tokens) / queried),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cli::top) fn look(time_ms: u64, num_tokens: u64) -> Look {
        let sum = |count, sum| Sum { count, sum };
        Look {
            time_ms,
            num_requests: 2,
            requests: vec![
                Row {
                    request_id: "cmpl-a".into(),
                    status: "running".into(),
                    age_s: 1.25,
                    why: "request cmpl-a is running".into(),
                    ..Row::default()
                },
                Row {
                    request_id: "cmpl-b".into(),
                    index: 1,
                    status: "waiting".into(),
                    age_s: 0.5,
                    why: "request cmpl-b output 1 waits for blocks: 7 needed, 3 free".into(),
                },
            ],
            stats: Stats {
                num_running: 1,
                num_waiting: 3,
                num_swapped: 1,
                num_live_blocks: 30,
                num_cached_blocks: 10,
                num_free_blocks: 60,
                num_generation_tokens: num_tokens,
                num_steps: num_tokens,
                distributions: Distributions {
                    ttft_s: sum(num_tokens, num_tokens as f64 * 0.02),
                    inter_token_s: sum(num_tokens, num_tokens as f64 * 0.005),
                },
                ..Stats::default()
            },
        }
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let mut looks = Looks::default();
        looks.push(look(1000, 0));
        assert_eq!(looks.rates(), None);
        for second in 1..20 {
            looks.push(look(1000 + 1000 * second, 100 * second));
        }
        let rates = looks.rates().expect("many looks");
        assert_eq!((rates.generated, rates.of_prompts, rates.hits), (100.0, 0.0, None));
        assert!((rates.ttft_ms.expect("measured") - 20.0).abs() < 1e-6);
        assert!((rates.tpot_ms.expect("measured") - 5.0).abs() < 1e-6);
        looks.push(look(99_000, 3));
        assert_eq!(looks.rates(), None, "a server that was started anew");
    }

    #[test]
    fn a_reason_does_not_repeat_the_name() {
        let look = look(0, 0);
        assert_eq!(look.requests[0].reason(), "is running");
        assert_eq!(look.requests[1].reason(), "waits for blocks: 7 needed, 3 free");
    }
}
