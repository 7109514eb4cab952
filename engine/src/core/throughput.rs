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
        let per_second = |count: u64| count as f64 / elapsed.as_secs_f64();
        let idle_us = stats.device_idle_us - before.device_idle_us;
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        tracing::info!(
            target: "quire::engine",
            "throughput: prompt {:.1} tokens/s, generation {:.1} tokens/s; running {}, waiting {}; KV cache usage \
             {:.1} %, prefix cache hit rate {:.1} %; {:.2} ms a step, device idle {:.1} %",
            per_second(stats.num_prompt_tokens - before.num_prompt_tokens),
            per_second(stats.num_generation_tokens - before.num_generation_tokens),
            stats.num_running,
            stats.num_waiting,
            100.0 * stats.kv_cache_usage(),
            percent(stats.num_prefix_hit_tokens, stats.num_prefix_query_tokens),
            elapsed.as_secs_f64() * 1e3 / (stats.num_steps - before.num_steps).max(1) as f64,
            percent(idle_us, idle_us + stats.device_time_us - before.device_time_us),
        );
        self.begin = Some((now, stats.clone()));
    }
}
