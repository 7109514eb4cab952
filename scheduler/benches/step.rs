//! What a step costs the scheduler: 256 decodes, and more and more who wait.

#![allow(missing_docs)] // of what `criterion_group` makes

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quire_kvcache::{KvCacheConfig, KvCacheManager};
use quire_scheduler::{Fcfs, NewSequence, Scheduler, SchedulerConfig, SequenceResult, StepPlan, Time};

const NUM_RUNNING: u32 = 256;

/// A scheduler with 256 decodes under way that will not end, and a queue.
fn busy(num_waiting: u32) -> Scheduler {
    let config = SchedulerConfig {
        max_num_seqs: NUM_RUNNING,
        max_num_batched_tokens: 8192,
        ..SchedulerConfig::new(1 << 24)
    };
    let cache = KvCacheManager::new(KvCacheConfig::new(1 << 21, 16)).expect("usable");
    let mut scheduler = Scheduler::new(config, Box::new(Fcfs), cache).expect("usable");
    for seq in 0..NUM_RUNNING + num_waiting {
        let prompt = (0..32).map(|position| seq * 32 + position).collect();
        scheduler.add(NewSequence::new(prompt, u32::MAX, Time::ZERO)).expect("fits");
    }
    let plan = scheduler.schedule(Time::ZERO).expect("no bug").expect("work");
    commit(&mut scheduler, &plan);
    scheduler
}

fn commit(scheduler: &mut Scheduler, plan: &StepPlan) {
    let sampling = plan.rows.iter().filter(|row| row.samples);
    let result =
        sampling.map(|row| SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None });
    scheduler.commit(plan.step, &result.collect::<Vec<_>>()).expect("results belong to the step");
}

/// Steps of one scheduler, before its sequences outgrow the pool.
const STEPS_PER_ROUND: u64 = 2_000;

/// The time of `num_steps` steps, without that of making schedulers.
fn time_steps(num_waiting: u32, num_steps: u64) -> Duration {
    let mut total = Duration::ZERO;
    for round in (0..num_steps).step_by(STEPS_PER_ROUND as usize) {
        let mut scheduler = busy(num_waiting);
        let start = Instant::now();
        for _ in round..num_steps.min(round + STEPS_PER_ROUND) {
            let plan = scheduler.schedule(Time::ZERO).expect("no bug").expect("work");
            assert_eq!(plan.rows.len(), NUM_RUNNING as usize);
            commit(&mut scheduler, &plan);
        }
        total += start.elapsed();
    }
    total
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule and commit, 256 decodes");
    group.sample_size(10);
    for num_waiting in [0, 1_000, 100_000] {
        group.bench_function(BenchmarkId::new("waiting", num_waiting), |b| {
            b.iter_custom(|num_steps| time_steps(num_waiting, num_steps));
        });
    }
}

criterion_group!(benches, step);
criterion_main!(benches);
