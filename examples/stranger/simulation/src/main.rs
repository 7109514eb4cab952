//! A policy is tried before anybody waits for it: the scheduler that serves, in virtual time.

mod policy;

use std::error::Error;

use quire_scheduler::{
    Fcfs, KvCacheConfig, KvCacheManager, NewSequence, Scheduler, SchedulerConfig, SchedulerPolicy,
    SequenceResult, Time,
};

use crate::policy::ShortPromptsFirst;

fn main() -> Result<(), Box<dyn Error>> {
    for policy in [Box::new(Fcfs) as Box<dyn SchedulerPolicy>, Box::new(ShortPromptsFirst)] {
        let name = policy.name().to_owned();
        println!("{name}: {:.0} ms on average from arrival to end", mean_latency_ms(policy)?);
    }
    Ok(())
}

/// A step costs 5 ms and 20 µs a token: a model with its weights in memory, in two numbers.
fn step_nanos(num_tokens: u32) -> u64 {
    5_000_000 + 20_000 * u64::from(num_tokens)
}

/// Runs 200 requests, a short one and a long one in turn, four of them at a time.
fn mean_latency_ms(policy: Box<dyn SchedulerPolicy>) -> Result<f64, Box<dyn Error>> {
    let cache = KvCacheManager::new(KvCacheConfig::new(4096, 16))?;
    let config =
        SchedulerConfig { max_num_seqs: 4, max_num_batched_tokens: 512, ..SchedulerConfig::new(4096) };
    let mut scheduler = Scheduler::new(config, policy, cache)?;
    for request in 0..200 {
        let prompt = vec![request; if request % 2 == 0 { 50 } else { 1000 }];
        scheduler.add(NewSequence::new(prompt, 20, Time::from_millis(u64::from(request))))?;
    }
    let (mut now, mut latency_ms) = (Time::from_millis(200), Vec::new());
    while let Some(plan) = scheduler.schedule(now)? {
        now = Time::from_nanos(now.as_nanos() + step_nanos(plan.num_tokens));
        let sampling = plan.rows.iter().filter(|row| row.samples);
        let results: Vec<_> = sampling
            .map(|row| SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None })
            .collect();
        let report = scheduler.commit(plan.step, &results)?;
        latency_ms.extend(report.finished.iter().map(|seq| now.since(seq.arrival).as_secs_f64() * 1e3));
    }
    Ok(latency_ms.iter().sum::<f64>() / latency_ms.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_pays_where_lengths_differ() {
        let fcfs = mean_latency_ms(Box::new(Fcfs)).expect("every request fits");
        let mine = mean_latency_ms(Box::new(ShortPromptsFirst)).expect("every request fits");
        assert!(mine < 0.9 * fcfs, "{mine} ms is not clearly below {fcfs} ms");
    }

    /// Random loads, tiny pools, aborts at every point: what must hold for every policy holds for this one.
    #[test]
    fn the_policy_passes_the_bench() {
        quire_scheduler::testing::check_policy(|_seed| Box::new(ShortPromptsFirst), 0..20);
    }
}
