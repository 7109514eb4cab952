//! Work that is lost to preemptions: it is noticed, admission is lowered for a while, and comes back.

use std::sync::mpsc;

use quire_kvcache::KvCacheConfig;
use quire_scheduler::testing::{Simulation, SimulationConfig};
use quire_scheduler::{
    CapacityMode, Fcfs, ForkError, NewSequence, SchedulerConfig, SequenceView, StepId, StepObserver,
};

/// Passes on what it is told of the limit.
struct Limits(mpsc::Sender<Option<u32>>);

impl StepObserver for Limits {
    fn admission_limited(&mut self, _step: StepId, limit: Option<u32>) {
        self.0.send(limit).unwrap();
    }
}

fn bench(capacity_mode: CapacityMode) -> Simulation {
    let mut cache = KvCacheConfig::new(80, 16);
    (cache.watermark, cache.enable_prefix_caching) = (0.0, false);
    let scheduler =
        SchedulerConfig { capacity_mode, max_num_batched_tokens: 512, ..SchedulerConfig::new(2048) };
    Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, Box::new(Fcfs))
}

/// Requests that are small when they come and large when they end, so that many start and few fit; then a light load.
fn storm(bench: &mut Simulation) {
    for seed in 0..120 {
        let new = NewSequence::new(Simulation::prompt(seed, 120), 160, bench.now());
        bench.add(new, seed, false).unwrap();
    }
    bench.run(20_000);
    for seed in 120..160 {
        let new = NewSequence::new(Simulation::prompt(seed, 20), 10, bench.now());
        bench.add(new, seed, false).unwrap();
        (0..40).for_each(|_| drop(bench.step()));
    }
    bench.run(1000);
}

#[test]
fn admission_is_lowered_says_so_and_comes_back() {
    let mut bench = bench(CapacityMode::MaxUtilization);
    let (sender, limits) = mpsc::channel();
    bench.add_observer(Limits(sender));
    storm(&mut bench);
    let limits: Vec<_> = limits.try_iter().collect();
    let stats = bench.scheduler().stats();
    println!("{} preemptions, limits {limits:?}", stats.num_preemptions);
    assert!(limits.first().is_some_and(Option::is_some), "it was lowered: {limits:?}");
    assert_eq!(limits.last(), Some(&None), "it is what it was: {limits:?}");
    assert_eq!((stats.thrash.limit, stats.thrash.num_times_lowered > 0), (None, true));
}

/// A fork is let run like any other: no more than the limit for now.
#[test]
fn forks_heed_the_limit_too() {
    let mut bench = bench(CapacityMode::MaxUtilization);
    let ids: Vec<_> = (0..120)
        .map(|seed| {
            let new = NewSequence::new(Simulation::prompt(seed, 120), 160, bench.now());
            bench.add(new, seed, false).unwrap()
        })
        .collect();
    let (mut num_refused, mut num_forked) = (0, 0);
    while bench.scheduler().has_unfinished() {
        bench.step();
        let stats = bench.scheduler().stats();
        let Some(limit) = stats.thrash.limit else { continue };
        let has_output = |seq: SequenceView<'_>| seq.num_output_tokens() > 0;
        let parent = ids.iter().find(|id| bench.scheduler().seq(**id).is_some_and(has_output));
        let Some(&parent) = parent else { continue };
        let has_seat = stats.num_running < limit as usize;
        assert_eq!(bench.scheduler().num_free_seats() > 0, has_seat);
        match bench.fork(parent, 120, 7) {
            Ok(_) => num_forked += u32::from(has_seat),
            Err(ForkError::Thrashing { limit: told }) => {
                assert!(!has_seat && told == limit);
                num_refused += 1;
            }
            Err(ForkError::NotRunning(_) | ForkError::NoBlocks(_)) => {}
            Err(error) => panic!("{error}"),
        }
        if num_forked > 20 {
            break;
        }
    }
    assert!(num_refused > 0 && num_forked > 0, "{num_refused} refused, {num_forked} forked");
    bench.run(40_000);
}

#[test]
fn where_nobody_gives_way_nothing_is_lowered() {
    let mut bench = bench(CapacityMode::Guaranteed);
    storm(&mut bench);
    assert_eq!(bench.scheduler().stats().thrash.num_times_lowered, 0);
    assert_eq!(bench.scheduler().stats().num_preemptions, 0);
}
