//! The throughput line of the log.

use std::time::Duration;

use quire_scheduler::Time;

use crate::EngineStats;

const INTERVAL: Duration = Duration::from_secs(10);

/// Writes a line every ten seconds while there is work.
#[derive(Debug, Default)]
pub(super) struct Throughput {
    /// When the present interval began, and the counters then.
    begin: Option<(Time, EngineStats)>,
}

impl Throughput {
    /// There is nothing to do: what comes next begins a new interval.
    pub(super) fn pause(&mut self) {
        self.begin = None;
    }

    /// Looks at the counters after a step.
    pub(super) fn note(&mut self, stats: &EngineStats, now: Time) {
        let Some((begin, before)) = &self.begin else {
            self.begin = Some((now, stats.clone()));
            return;
        };
        let elapsed = now.since(*begin);
        if elapsed < INTERVAL {
            return;
        }
        tracing::info!(target: "quire::engine", "{}", line(before, stats, elapsed));
        self.begin = Some((now, stats.clone()));
    }
}

/// What was done between two readings of the counters.
fn line(before: &EngineStats, stats: &EngineStats, elapsed: Duration) -> String {
    let per_second = |count: u64| count as f64 / elapsed.as_secs_f64();
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let mut line = format!(
        "throughput: prompt {:.1} tokens/s, generation {:.1} tokens/s; running {}, waiting {}; KV cache usage {:.1} %, \
         prefix cache hit rate {:.1} %; {:.2} ms a step",
        per_second(stats.num_prompt_tokens - before.num_prompt_tokens),
        per_second(stats.num_generation_tokens - before.num_generation_tokens),
        stats.num_running,
        stats.num_waiting,
        100.0 * stats.kv_cache_usage(),
        percent(stats.num_prefix_hit_tokens, stats.num_prefix_query_tokens),
        elapsed.as_secs_f64() * 1e3 / (stats.num_steps - before.num_steps).max(1) as f64,
    );
    let reasons = stats.waiting_by_reason.iter().filter(|(_, number)| **number > 0);
    let reasons: Vec<_> = reasons.map(|(reason, number)| format!("{reason} {number}")).collect();
    if !reasons.is_empty() {
        line += &format!(", waiting for: {}", reasons.join(", "));
    }
    let (busy, idle) =
        (stats.device_time_us - before.device_time_us, stats.device_idle_us - before.device_idle_us);
    // A device without a clock of its own says nothing of either.
    if busy > 0 {
        line += &format!(", device idle {:.1} %", percent(idle, idle + busy));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_with_a_clock_is_said_to_be_idle() {
        let before = EngineStats::default();
        let mut stats = EngineStats { num_steps: 4, num_generation_tokens: 20, ..EngineStats::default() };
        let second = Duration::from_secs(1);
        let without = line(&before, &stats, second);
        assert!(
            without.contains("generation 20.0 tokens/s") && without.ends_with("250.00 ms a step"),
            "{without}"
        );
        stats.waiting_by_reason = [("blocks", 1), ("queue", 7), ("swap", 0)].into();
        assert!(line(&before, &stats, second).ends_with("250.00 ms a step, waiting for: blocks 1, queue 7"));
        (stats.device_time_us, stats.device_idle_us) = (900, 100);
        assert!(line(&before, &stats, second).ends_with("device idle 10.0 %"));
    }
}
