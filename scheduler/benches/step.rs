//! What a step costs the scheduler: 256 decodes, and more and more who wait.

#![allow(missing_docs)] // of what `criterion_group` makes

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quire_kvcache::{KvCacheConfig, KvCacheManager};
use quire_scheduler::record::RecordedScheduler;
use quire_scheduler::{
    Fcfs, NewSequence, PlannedRow, Scheduler, SchedulerConfig, SeqId, SequenceResult, StepPlan, Time,
    WaitReason,
};

const NUM_RUNNING: u32 = 256;

fn limits() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: NUM_RUNNING,
        max_num_batched_tokens: 8192,
        ..SchedulerConfig::new(1 << 24)
    }
}

/// A scheduler with 256 decodes under way that will not end, and a queue.
fn busy(num_waiting: u32) -> Scheduler {
    let config = limits();
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
    scheduler.commit(plan.step, &results(plan)).expect("results belong to the step");
}

fn results(plan: &StepPlan) -> Vec<SequenceResult<'static>> {
    let sampling = plan.rows.iter().filter(|row| row.samples);
    let result =
        |row: &PlannedRow| SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None };
    sampling.map(result).collect()
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

/// The time of `num_steps` steps of 255 decodes, and of a long sequence's, while the head of the queue does not fit; of its
/// prompt `num_shared_tokens` are cached, since the long sequence begins alike.
fn time_refused_head(num_shared_tokens: u32, num_steps: u64) -> Duration {
    const STEPS_PER_ROUND: u64 = 200;
    const LONG: u32 = 32_768;
    let mut total = Duration::ZERO;
    for round in (0..num_steps).step_by(STEPS_PER_ROUND as usize) {
        let config = SchedulerConfig { max_num_batched_tokens: 65_536, ..limits() };
        let cache = KvCacheConfig { watermark: 0.0, ..KvCacheConfig::new(8192, 16) };
        let cache = KvCacheManager::new(cache).expect("usable");
        let mut scheduler = Scheduler::new(config, Box::new(Fcfs), cache).expect("usable");
        let mut add = |prompt: Vec<u32>| {
            scheduler.add(NewSequence::new(prompt, 2048, Time::ZERO)).expect("fits");
        };
        add((0..LONG).collect());
        (1..NUM_RUNNING - 1).for_each(|seq| add((0..32).map(|position| seq << 20 | position).collect()));
        step_once(&mut scheduler);
        let tail = 96_000 + LONG - num_shared_tokens;
        let head = (0..num_shared_tokens).chain((0..tail).map(|position| 1 << 30 | position));
        scheduler.add(NewSequence::new(head.collect(), 1, Time::ZERO)).expect("fits an empty pool");
        let start = Instant::now();
        for _ in round..num_steps.min(round + STEPS_PER_ROUND) {
            step_once(&mut scheduler);
        }
        total += start.elapsed();
        assert_eq!(scheduler.stats().num_waiting, 1, "the head waits for blocks");
    }
    total
}

fn step_once(scheduler: &mut Scheduler) {
    let plan = scheduler.schedule(Time::ZERO).expect("no bug").expect("work");
    assert_eq!(plan.rows.len(), NUM_RUNNING as usize - 1);
    commit(scheduler, &plan);
}

/// What the flight recorder adds: compare with `time_steps` of a queue without anybody.
fn time_recorded_steps(num_steps: u64) -> Duration {
    let mut total = Duration::ZERO;
    for round in (0..num_steps).step_by(STEPS_PER_ROUND as usize) {
        let mut scheduler = RecordedScheduler::new(busy(0));
        let start = Instant::now();
        for step in round..num_steps.min(round + STEPS_PER_ROUND) {
            let now = Time::from_nanos(step * 5_000_000);
            let plan = scheduler.schedule(now).expect("no bug").expect("work");
            let results = results(&plan);
            scheduler.note_device_time(Duration::from_micros(4000));
            scheduler.commit(plan.step, &results, now).expect("results belong to the step");
        }
        total += start.elapsed();
    }
    total
}

/// Steps with the recorder and without it, in turns, so that both meet the same machine: what a step costs either way, and
/// the median of what the recorder adds.
fn print_recorder_in_turns() {
    const NUM_ROUNDS: usize = 31;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / STEPS_PER_ROUND as f64;
    let (mut without, mut with, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..NUM_ROUNDS {
        without.push(micros(time_steps(0, STEPS_PER_ROUND)));
        with.push(micros(time_recorded_steps(STEPS_PER_ROUND)));
        added.push(with[with.len() - 1] - without[without.len() - 1]);
    }
    let [without, with, added] = [without, with, added].map(median);
    println!(
        "a step without and with the recorder, in turns: {without:.1} and {with:.1} µs, {added:.2} µs added"
    );
}

/// How long a commit takes that writes a checkpoint, by blocks of the pool: half of them full of cached beginnings.
fn print_checkpoints() {
    for num_blocks in [4_096, 65_536, 1 << 20] {
        let mut stalls: Vec<f64> = (0..11).map(|_| time_checkpoint(num_blocks).as_secs_f64() * 1e3).collect();
        stalls.sort_by(f64::total_cmp);
        let (middle, worst) = (stalls[stalls.len() / 2], stalls[stalls.len() - 1]);
        println!(
            "a checkpoint of {num_blocks} blocks, 256 run and 1,000 wait: {middle:.3} ms, at worst {worst:.3} ms"
        );
    }
}

fn time_checkpoint(num_blocks: u32) -> Duration {
    let cache = KvCacheManager::new(KvCacheConfig::new(num_blocks, 16)).expect("usable");
    let config = SchedulerConfig { max_num_batched_tokens: 1 << 22, ..limits() };
    let mut scheduler =
        RecordedScheduler::new(Scheduler::new(config, Box::new(Fcfs), cache).expect("usable"));
    let num_prompt_tokens = num_blocks / 2 / NUM_RUNNING * 16;
    for seq in 0..NUM_RUNNING + 1000 {
        let prompt = (0..num_prompt_tokens).map(|position| seq << 20 | position).collect();
        scheduler.add(NewSequence::new(prompt, 1000, Time::ZERO)).expect("fits");
    }
    let mut step = |max_bytes: Option<usize>| {
        let plan = scheduler.schedule(Time::ZERO).expect("no bug").expect("work");
        max_bytes.iter().for_each(|bytes| scheduler.recorder().set_max_bytes(*bytes));
        let start = Instant::now();
        scheduler.commit(plan.step, &results(&plan), Time::ZERO).expect("results belong to the step");
        start.elapsed()
    };
    let usual = (0..4).map(|_| step(None)).last().unwrap_or_default();
    // A ring so small that a quarter of it is full.
    step(Some(16)).saturating_sub(usual)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `explain` of the last in the queue, which costs most.
fn explain(c: &mut Criterion) {
    let mut group = c.benchmark_group("explain the last that waits");
    for num_waiting in [1_000, 10_000, 100_000] {
        let scheduler = busy(num_waiting);
        let last = SeqId(u64::from(NUM_RUNNING + num_waiting - 1));
        let expected =
            WaitReason::Behind { head: SeqId(NUM_RUNNING.into()), place: num_waiting as usize - 1 };
        assert_eq!(scheduler.explain(last, Time::ZERO).and_then(|why| why.waits_for), Some(expected));
        group.bench_function(BenchmarkId::new("waiting", num_waiting), |b| {
            b.iter(|| scheduler.explain(std::hint::black_box(last), Time::ZERO));
        });
    }
}

fn recorder(_: &mut Criterion) {
    print_recorder_in_turns();
    print_checkpoints();
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule and commit, 256 decodes");
    group.sample_size(10);
    for num_waiting in [0, 1_000, 100_000] {
        group.bench_function(BenchmarkId::new("waiting", num_waiting), |b| {
            b.iter_custom(|num_steps| time_steps(num_waiting, num_steps));
        });
    }
    group.bench_function("recorded", |b| b.iter_custom(time_recorded_steps));
    for num_shared_tokens in [0, 32_768] {
        group.bench_function(BenchmarkId::new("refused head, tokens cached", num_shared_tokens), |b| {
            b.iter_custom(|num_steps| time_refused_head(num_shared_tokens, num_steps));
        });
    }
}

criterion_group!(benches, step, explain, recorder);
criterion_main!(benches);
