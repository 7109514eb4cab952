//! Sequences that wait for something which is made outside of the scheduler.

use quire_scheduler::testing::{Simulation, SimulationConfig};
use quire_scheduler::{
    FinishReason, HoldError, HoldReason, KvCacheConfig, NewSequence, PolicyRegistry, Rank, Refusal,
    SchedulerConfig, SchedulerPolicy, SeqId, SeqStatus, SequenceView, StepBuilder, TenantId, Time, WaitClass,
    WaitReason, standard_plan,
};

const LOOPS: [usize; 2] = [1, 2];

fn bench_with(policy: Box<dyn SchedulerPolicy>, max_num_seqs: u32, max_open_steps: usize) -> Simulation {
    let mut cache = KvCacheConfig::new(64, 16);
    (cache.watermark, cache.num_swap_blocks) = (0.0, 32);
    let scheduler = SchedulerConfig { max_num_seqs, ..SchedulerConfig::new(512) };
    Simulation::new(SimulationConfig { scheduler, cache, max_open_steps }, policy)
}

fn bench(max_num_seqs: u32, max_open_steps: usize) -> Simulation {
    bench_with(PolicyRegistry::default().build("fcfs").unwrap(), max_num_seqs, max_open_steps)
}

fn add(bench: &mut Simulation, seed: u64) -> SeqId {
    let mut new = NewSequence::new(Simulation::prompt(seed, 20), 6, bench.now());
    new.tenant = TenantId(seed);
    bench.add(new, seed, false).unwrap()
}

fn order_of_starts(bench: &Simulation) -> Vec<SeqId> {
    let mut started: Vec<_> = bench.ended().iter().map(|ended| &ended.sequence).collect();
    started.sort_by_key(|seq| (seq.first_admitted, seq.id));
    started.into_iter().map(|seq| seq.id).collect()
}

fn num_waiting(bench: &Simulation, class: WaitClass) -> usize {
    let counts = bench.scheduler().waiting_by_reason();
    counts.into_iter().find(|(counted, _)| *counted == class).map_or(0, |(_, number)| number)
}

#[test]
fn a_held_head_blocks_nobody_and_keeps_its_place() {
    for max_open_steps in LOOPS {
        let mut bench = bench(1, max_open_steps);
        let seqs: Vec<_> = (0..4).map(|seed| add(&mut bench, seed)).collect();
        assert!(bench.hold(seqs[0], HoldReason::Grammar));
        assert!(bench.hold(seqs[2], HoldReason::Adapter));
        bench.step();
        assert_eq!(bench.scheduler().seq(seqs[1]).unwrap().status(), SeqStatus::Running);
        assert!(bench.release(seqs[0], HoldReason::Grammar));
        assert!(bench.release(seqs[2], HoldReason::Adapter));
        bench.run(200);
        assert_eq!(order_of_starts(&bench), [1, 0, 2, 3].map(|place| seqs[place]));
    }
}

#[test]
fn every_shipped_policy_serves_around_a_hold_and_comes_back_to_it() {
    let policies = PolicyRegistry::default();
    for name in policies.names() {
        for max_open_steps in LOOPS {
            let mut bench = bench_with(policies.build(name).unwrap(), 2, max_open_steps);
            let held = add(&mut bench, 0);
            assert!(bench.hold(held, HoldReason::Grammar));
            let others: Vec<_> = (1..6).map(|seed| add(&mut bench, seed)).collect();
            while others.iter().any(|seq| bench.scheduler().seq(*seq).is_some()) {
                bench.step();
            }
            assert_eq!((bench.ended().len(), bench.scheduler().has_work()), (5, false), "{name}");
            assert!(bench.scheduler().has_unfinished() && bench.step().is_none(), "{name}");
            assert!(bench.release(held, HoldReason::Grammar));
            assert!(bench.scheduler().has_work());
            bench.run(40);
            assert_eq!(bench.ended().last().unwrap().sequence.reason, FinishReason::Length, "{name}");
        }
    }
}

#[test]
fn it_runs_when_the_last_of_its_holds_has_ended() {
    let mut bench = bench(2, 1);
    let seq = add(&mut bench, 1);
    assert!(bench.hold(seq, HoldReason::Adapter) && bench.hold(seq, HoldReason::Grammar));
    assert!(bench.hold(seq, HoldReason::Grammar), "a reason counts once");
    assert!(bench.release(seq, HoldReason::Grammar));
    assert!(!bench.release(seq, HoldReason::Grammar));
    assert!(bench.step().is_none());
    let why = bench.scheduler().explain(seq, bench.now()).unwrap();
    assert_eq!(why.waits_for, Some(WaitReason::Held(HoldReason::Adapter)));
    assert!(bench.release(seq, HoldReason::Adapter));
    assert!(bench.step().is_some());
    bench.run(20);
}

#[test]
fn what_it_is_held_for_and_how_long_is_told_and_counted() {
    let mut bench = bench(1, 1);
    let seqs: Vec<_> = (0..4).map(|seed| add(&mut bench, seed)).collect();
    bench.hold(seqs[1], HoldReason::Grammar);
    bench.hold(seqs[2], HoldReason::Adapter);
    (0..3).for_each(|_| drop(bench.step()));
    let why = bench.scheduler().explain(seqs[1], Time::from_millis(250)).unwrap();
    assert_eq!(
        (why.status, why.waits_for),
        (SeqStatus::Waiting, Some(WaitReason::Held(HoldReason::Grammar)))
    );
    assert_eq!((why.waiting.as_millis(), why.age.as_millis()), (250, 250));
    let why = bench.scheduler().explain(seqs[3], bench.now()).unwrap();
    assert_eq!(
        why.waits_for,
        Some(WaitReason::Refused(Refusal::SeqLimit { limit: 1 })),
        "it is the head now"
    );
    let counted = [WaitClass::Grammar, WaitClass::Adapter, WaitClass::SeqLimit, WaitClass::Queue];
    assert_eq!(counted.map(|class| num_waiting(&bench, class)), [1, 1, 1, 0]);
    assert_eq!(bench.scheduler().stats().num_waiting, 3);
    assert_eq!(HoldReason::Grammar.to_string(), "its grammar is being compiled");
    bench.release(seqs[1], HoldReason::Grammar);
    bench.release(seqs[2], HoldReason::Adapter);
    assert_eq!(counted.map(|class| num_waiting(&bench, class)), [0, 0, 1, 2]);
    bench.run(100);
}

#[test]
fn a_held_sequence_can_be_aborted() {
    for max_open_steps in LOOPS {
        let mut bench = bench(1, max_open_steps);
        let seqs: Vec<_> = (0..3).map(|seed| add(&mut bench, seed)).collect();
        bench.hold(seqs[1], HoldReason::Grammar);
        bench.step();
        bench.abort(seqs[1]);
        assert_eq!(num_waiting(&bench, WaitClass::Grammar), 0);
        assert!(!bench.release(seqs[1], HoldReason::Grammar), "whoever made its grammar comes too late");
        bench.run(100);
        assert_eq!(bench.ended().len(), 3);
    }
}

/// Swaps the second sequence out once, and asks for what is held.
struct Stubborn {
    swapped: bool,
}

impl SchedulerPolicy for Stubborn {
    fn name(&self) -> &str {
        "stubborn"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let has_output = step.seq(SeqId(1)).is_some_and(|seq| seq.num_output_tokens() > 0);
        if has_output && !self.swapped {
            self.swapped = step.preempt(SeqId(1), quire_scheduler::PreemptionMode::Swap).is_ok();
        }
        if let Some(reason) = step.seq(SeqId(1)).and_then(|seq| seq.held_for()) {
            assert_eq!(step.admit(SeqId(1)), Err(Refusal::Held(reason)));
            assert_eq!(step.grant(SeqId(1), 1), Err(Refusal::NotRunning));
        }
        standard_plan(self, step);
    }
}

/// One that gave way is held like another, in each state of its transfer, and through a failure of the device.
#[test]
fn a_swapped_sequence_can_be_held() {
    for (max_open_steps, fails) in [(1, false), (2, false), (1, true), (2, true)] {
        for num_more_steps in 0..3 {
            let mut bench = bench_with(Box::new(Stubborn { swapped: false }), 2, max_open_steps);
            add(&mut bench, 0);
            add(&mut bench, 1);
            while bench.scheduler().stats().num_swapped == 0 {
                assert!(
                    !bench.hold(SeqId(1), HoldReason::Adapter)
                        || bench.release(SeqId(1), HoldReason::Adapter)
                );
                bench.step();
            }
            if !bench.hold(SeqId(1), HoldReason::Adapter) {
                continue; // it is back already
            }
            (0..num_more_steps).for_each(|_| drop(bench.step()));
            if fails {
                bench.fail_device();
            }
            assert_eq!(num_waiting(&bench, WaitClass::Adapter), 1);
            while bench.scheduler().has_work() {
                bench.step();
            }
            assert!(bench.release(SeqId(1), HoldReason::Adapter));
            bench.run(100);
            assert_eq!(bench.ended().len(), 2);
        }
    }
}

#[test]
fn only_what_waits_is_held() {
    use quire_scheduler::{Fcfs, KvCacheManager, Scheduler};
    let cache = KvCacheManager::new(KvCacheConfig::new(8, 16)).unwrap();
    let mut scheduler = Scheduler::new(SchedulerConfig::new(100), Box::new(Fcfs), cache).unwrap();
    let seq = scheduler.add(NewSequence::new(vec![1; 4], 4, Time::ZERO)).unwrap();
    scheduler.schedule(Time::ZERO).unwrap().unwrap();
    assert_eq!(scheduler.hold(seq, HoldReason::Grammar), Err(HoldError::Running(seq)));
    assert_eq!(scheduler.hold(SeqId(9), HoldReason::Grammar), Err(HoldError::Unknown(SeqId(9))));
    assert!(!scheduler.release(seq, HoldReason::Grammar));
}
