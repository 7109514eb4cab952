//! Faults that engines of this kind have had (`known-failures.md`), as far as they are about scheduling. Each test is
//! named after its case.

use quire_kvcache::KvCacheConfig;
use quire_scheduler::testing::{Rng, Simulation, SimulationConfig};
use quire_scheduler::{
    AddError, Fcfs, FinishReason, NewSequence, PolicyRegistry, Preemption, PreemptionMode, Priority, Rank,
    Refusal, RowKind, SchedulerConfig, SchedulerPolicy, SeqId, SeqStatus, SequenceView, StepBuilder,
    TenantId, WaitClass, WaitReason, standard_plan,
};

/// The loops that every case runs in: plain and run-ahead.
const LOOPS: [usize; 2] = [1, 2];

fn config(num_blocks: u32, max_model_len: u32, max_open_steps: usize) -> SimulationConfig {
    let mut cache = KvCacheConfig::new(num_blocks, 16);
    cache.watermark = 0.0;
    SimulationConfig { scheduler: SchedulerConfig::new(max_model_len), cache, max_open_steps }
}

fn bench(num_blocks: u32, max_model_len: u32, max_open_steps: usize) -> Simulation {
    Simulation::new(config(num_blocks, max_model_len, max_open_steps), Box::new(Fcfs))
}

/// A prompt of its own, and an output of exactly `num_output_tokens`, limits allowing.
fn add(bench: &mut Simulation, num_prompt_tokens: u32, num_output_tokens: u32) -> Result<SeqId, AddError> {
    let seed = u64::from(num_prompt_tokens) + 1000 * bench.num_steps() + 17 * bench.ended().len() as u64;
    let prompt = Simulation::prompt(seed, num_prompt_tokens);
    let new = NewSequence::new(prompt, num_output_tokens, bench.now());
    bench.add(new, seed, false)
}

#[test]
fn br_01_a_prompt_larger_than_the_pool_is_refused_on_arrival() {
    for max_open_steps in LOOPS {
        let mut bench = bench(8, 256, max_open_steps);
        let refusal = add(&mut bench, 200, 10).unwrap_err();
        assert_eq!(refusal, AddError::NeverFits { num_tokens: 200, need: 13, have: 8 });
        let text = refusal.to_string();
        assert!(text.contains("13 blocks") && text.contains("8 present"), "{text}");
        add(&mut bench, 10, 5).unwrap();
        bench.run(20);
        assert_eq!(bench.ended().len(), 1);
    }
}

#[test]
fn br_03_a_prompt_starts_only_when_the_whole_of_it_fits() {
    for max_open_steps in LOOPS {
        let mut config = config(100, 2048, max_open_steps);
        config.scheduler.max_num_batched_tokens = 256;
        let mut bench = Simulation::new(config, Box::new(Fcfs));
        let first = add(&mut bench, 960, 10).unwrap();
        let second = add(&mut bench, 959, 10).unwrap();
        while bench.ended().is_empty() {
            if let Some(plan) = bench.step() {
                assert!(
                    plan.rows.iter().all(|row| row.seq == first),
                    "the second starts when the first frees"
                );
            }
        }
        bench.run(100);
        assert_eq!(bench.ended().iter().map(|ended| ended.sequence.id).collect::<Vec<_>>(), [first, second]);
        assert_eq!(bench.scheduler().stats().num_preemptions, 0);
    }
}

#[test]
fn br_04_two_that_fit_one_and_a_half_times_both_finish() {
    for max_open_steps in LOOPS {
        for (num_prompt_tokens, num_output_tokens) in [(512, 512), (64, 192), (1, 500), (600, 40)] {
            let final_blocks = u32::div_ceil(num_prompt_tokens + num_output_tokens, 16);
            let mut lone = bench(final_blocks * 2, 2048, max_open_steps);
            add(&mut lone, num_prompt_tokens, num_output_tokens).unwrap();
            let lone_steps = lone.run(u64::MAX);

            let mut bench = bench(final_blocks * 3 / 2, 2048, max_open_steps);
            add(&mut bench, num_prompt_tokens, num_output_tokens).unwrap();
            add(&mut bench, num_prompt_tokens + 1, num_output_tokens - 1).unwrap();
            let num_recompute_steps = 4;
            bench.run(2 * lone_steps + 2 * num_recompute_steps);
            assert!(bench.ended().iter().all(|ended| ended.sequence.num_preemptions <= 2));
        }
    }
}

/// The same where the two are equal to the last token, and so share what is cached.
#[test]
fn br_04_two_equal_requests_both_finish() {
    for max_open_steps in LOOPS {
        let mut lone = bench(128, 2048, max_open_steps);
        add(&mut lone, 512, 512).unwrap();
        let lone_steps = lone.run(u64::MAX);
        let mut bench = bench(96, 2048, max_open_steps);
        (0..2).for_each(|_| drop(add(&mut bench, 512, 512)));
        bench.run(2 * lone_steps + 2 * 4);
        assert_eq!(bench.ended()[0].delivered, bench.ended()[1].delivered);
        assert!(bench.ended().iter().all(|ended| ended.sequence.num_preemptions <= 2));
    }
}

/// Under every policy that lets nobody give way but for want of blocks, by swap and by recompute, with forks.
#[test]
fn br_04_a_crowd_in_a_small_pool_is_preempted_at_most_twice_each() {
    let policies = PolicyRegistry::default();
    let mut num_by_times = [0; 3];
    for name in policies.names().filter(|name| *name != "priority") {
        for (max_open_steps, seed) in LOOPS.into_iter().flat_map(|open| (0..40).map(move |seed| (open, seed)))
        {
            let mut rng = Rng::new(seed);
            let mut config = config(rng.range(12..30), 512, max_open_steps);
            if seed % 2 == 1 {
                (config.cache.num_swap_blocks, config.scheduler.preemption) = (24, Preemption::Swap);
            }
            let mut bench = Simulation::new(config, policies.build(name).unwrap());
            for _ in 0..16 {
                let (num_prompt_tokens, num_output_tokens) = (rng.range(1..100), rng.range(1..90));
                let prefix = Simulation::prompt(u64::from(rng.range(0..3)), 40.min(num_prompt_tokens));
                let rest = Simulation::prompt(rng.next_u64(), num_prompt_tokens - prefix.len() as u32);
                let mut new = NewSequence::new([prefix, rest].concat(), num_output_tokens, bench.now());
                new.tenant = TenantId(u64::from(rng.range(0..3)));
                let seq = bench.add(new, rng.next_u64(), false).unwrap();
                (0..rng.range(0..9)).for_each(|_| drop(bench.step()));
                let computed = |seq: SequenceView<'_>| seq.num_computed_tokens() >= num_prompt_tokens;
                if seed % 4 > 1 && bench.scheduler().seq(seq).is_some_and(computed) {
                    let _ = bench.fork_many(seq, num_prompt_tokens, &[rng.next_u64(), 5]);
                }
            }
            bench.run(48 * 90);
            for ended in bench.ended() {
                let times = ended.sequence.num_preemptions as usize;
                assert!(times <= 2, "{name}, {max_open_steps} open, seed {seed}: {times} times");
                num_by_times[times] += 1;
            }
        }
    }
    assert!(num_by_times.iter().all(|number| *number > 20), "{num_by_times:?}");
}

#[test]
fn br_05_the_last_running_sequence_ends_at_the_edge_of_the_pool() {
    for max_open_steps in LOOPS {
        let mut bench = bench(8, 4096, max_open_steps);
        add(&mut bench, 100, 60).unwrap();
        bench.run(100);
        let ended = &bench.ended()[0].sequence;
        assert_eq!((ended.reason, ended.tokens.len()), (FinishReason::Length, 128));
        add(&mut bench, 10, 60).unwrap();
        bench.run(100);
        assert_eq!(bench.ended()[1].sequence.tokens.len(), 70);
    }
}

#[test]
fn br_06_throughput_comes_back_after_a_burst() {
    for max_open_steps in LOOPS {
        let mut bench = bench(128, 2048, max_open_steps);
        // A sequence of 64 + 64 tokens holds 8 blocks for some 65 steps: one every 8 steps fills half of the pool.
        let steady = |bench: &mut Simulation, num_steps: u32| {
            let before = bench.scheduler().stats().num_scheduled_tokens;
            for step in 0..num_steps {
                if step % 8 == 0 {
                    add(bench, 64, 64).unwrap();
                }
                bench.step();
            }
            (bench.scheduler().stats().num_scheduled_tokens - before) as f64 / f64::from(num_steps)
        };
        steady(&mut bench, 400);
        let before = steady(&mut bench, 400);
        for _ in 0..20 {
            add(&mut bench, 128, 180).unwrap();
            add(&mut bench, 128, 190).unwrap();
            bench.step();
        }
        assert!(bench.scheduler().stats().num_waiting > 0, "the burst is more than the pool holds");
        let mut num_steps_to_drain = 0;
        while bench.scheduler().stats().num_waiting > 0 {
            steady(&mut bench, 8);
            num_steps_to_drain += 8;
        }
        steady(&mut bench, 200);
        let after = steady(&mut bench, 400);
        assert!((after / before - 1.0).abs() < 0.05, "{before} tokens a step before, {after} after");
        println!("drained in {num_steps_to_drain} steps");
    }
}

/// The same by the letter: a burst of three times the pool within 20 steps, and after 200 steps it is as before.
#[test]
fn br_06_throughput_is_back_200_steps_after_a_burst() {
    for max_open_steps in LOOPS {
        let mut bench = bench(128, 2048, max_open_steps);
        let steady = |bench: &mut Simulation, num_steps: u32| {
            let before = bench.scheduler().stats().num_scheduled_tokens;
            for step in 0..num_steps {
                if step % 8 == 0 {
                    add(bench, 64, 64).unwrap();
                }
                bench.step();
            }
            (bench.scheduler().stats().num_scheduled_tokens - before) as f64 / f64::from(num_steps)
        };
        steady(&mut bench, 400);
        let before = steady(&mut bench, 400);
        let num_calm = bench.scheduler().stats().num_preemptions;
        // 96 sequences that come in with 3 blocks and end with 4.
        for seed in 0..96_u32 {
            add(&mut bench, 40 + seed % 8, 24).unwrap();
            if seed % 5 == 0 {
                bench.step();
            }
        }
        assert!(bench.scheduler().stats().num_waiting > 20, "the burst is more than the pool holds");
        steady(&mut bench, 200);
        let num_preemptions = bench.scheduler().stats().num_preemptions - num_calm;
        assert!(num_preemptions > 0, "the burst made somebody give way");
        let after = steady(&mut bench, 400);
        assert!((after / before - 1.0).abs() < 0.05, "{before} tokens a step before, {after} after");
    }
}

/// Preempts the second sequence each time it has generated so many tokens.
struct PreemptAfter(Vec<u32>);

impl SchedulerPolicy for PreemptAfter {
    fn name(&self) -> &str {
        "preempt-after"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let due = step.seq(SeqId(1)).is_some_and(|seq| self.0.first() == Some(&seq.num_output_tokens()));
        if due && step.preempt(SeqId(1), PreemptionMode::Recompute).is_ok() {
            self.0.remove(0);
        }
        standard_plan(self, step);
    }
}

/// Runs 60 greedy tokens in chunks of 7 with preemptions; the bench checks that the tokens are those of a lone run,
/// and that each is delivered once.
#[track_caller]
fn preempt_after(tokens: &[u32], max_open_steps: usize, enable_prefix_caching: bool) {
    let mut config = config(64, 512, max_open_steps);
    config.scheduler.max_prefill_chunk = Some(7);
    config.cache.enable_prefix_caching = enable_prefix_caching;
    let mut bench = Simulation::new(config, Box::new(PreemptAfter(tokens.to_vec())));
    add(&mut bench, 30, 200).unwrap();
    add(&mut bench, 31, 60).unwrap();
    let mut num_resumed = 0;
    while bench.ended().is_empty() {
        let plan = bench.step().into_iter().flat_map(|plan| plan.rows);
        num_resumed += plan.filter(|row| row.kind == RowKind::Resumed).count();
    }
    let ended = &bench.ended()[0];
    assert_eq!((num_resumed, ended.sequence.num_preemptions as usize), (tokens.len(), tokens.len()));
    assert_eq!((ended.sequence.num_prompt_tokens, ended.delivered.len()), (31, 60));
}

#[test]
fn br_07_a_better_priority_takes_the_place_of_a_worse_one() {
    for max_open_steps in LOOPS {
        let mut config = config(64, 512, max_open_steps);
        config.scheduler.max_num_seqs = 2;
        let mut bench = Simulation::new(config, Box::new(Priority::default()));
        let add_with = |bench: &mut Simulation, priority, seed| {
            let mut new = NewSequence::new(Simulation::prompt(seed, 20), 40, bench.now());
            new.priority = priority;
            bench.add(new, seed, false).unwrap()
        };
        let first = add_with(&mut bench, 10, 1);
        bench.step();
        let second = add_with(&mut bench, 10, 2);
        (0..5).for_each(|_| drop(bench.step()));
        let urgent = add_with(&mut bench, 0, 3);
        let late = add_with(&mut bench, 10, 4);
        let plan = bench.step().expect("there is work");
        assert!(plan.rows.iter().any(|row| row.seq == urgent), "the urgent one is in the next step");
        assert_eq!(plan.preempted, [second], "of the worst priority, the one that came last gave way");
        while bench.scheduler().seq(late).is_some_and(|seq| seq.served_tokens() == 0) {
            let served = bench.step().into_iter().flat_map(|plan| plan.rows).map(|row| row.seq);
            let served: Vec<_> = served.collect();
            assert!(!served.contains(&late) || served.contains(&second), "the victim comes back first");
        }
        bench.run(500);
        let preemptions = |seq| {
            bench.ended().iter().find(|ended| ended.sequence.id == seq).unwrap().sequence.num_preemptions
        };
        assert_eq!([first, second, urgent, late].map(preemptions), [0, 1, 0, 0]);
    }
}

#[test]
fn br_07_a_better_priority_takes_the_blocks_of_worse_ones() {
    for max_open_steps in LOOPS {
        let mut bench = Simulation::new(config(10, 512, max_open_steps), Box::new(Priority::default()));
        for (seed, priority) in [(1, 0), (2, 9), (3, 9)] {
            let mut new = NewSequence::new(Simulation::prompt(seed, 40), 8, bench.now());
            new.priority = priority;
            bench.add(new, seed, false).unwrap();
        }
        bench.step();
        let mut new = NewSequence::new(Simulation::prompt(4, 90), 8, bench.now());
        new.priority = 1;
        let urgent = bench.add(new, 4, false).unwrap();
        let mut preempted = Vec::new();
        while bench.scheduler().seq(urgent).is_some_and(|seq| seq.served_tokens() == 0) {
            preempted.extend(bench.step().into_iter().flat_map(|plan| plan.preempted));
        }
        assert_eq!(preempted, [SeqId(2), SeqId(1)], "both together hold what is needed");
        assert!(bench.num_steps() <= 2 + max_open_steps as u64);
        bench.run(200);
    }
}

#[test]
fn br_11_generated_tokens_stay_output_after_a_preemption() {
    for max_open_steps in LOOPS {
        for after in [1, 10, 39] {
            preempt_after(&[after], max_open_steps, true);
            preempt_after(&[after], max_open_steps, false);
        }
    }
}

#[test]
fn br_12_each_token_is_delivered_once_over_three_preemptions() {
    for max_open_steps in [1, 2, 3] {
        preempt_after(&[1, 10, 39], max_open_steps, true);
        preempt_after(&[0, 0, 59], max_open_steps, false);
    }
}

#[test]
fn br_17_a_full_hit_leaves_the_last_token_to_compute() {
    for max_open_steps in LOOPS {
        let mut bench = bench(64, 512, max_open_steps);
        let long = Simulation::prompt(1, 48);
        for num_tokens in [15, 16, 17, 32, 33, 48, 15, 16, 17, 32, 33] {
            let new = NewSequence::new(long[..num_tokens].to_vec(), 4, bench.now());
            bench.add(new, 1, false).unwrap();
            bench.run(20);
            let cached = bench.ended().last().unwrap().sequence.num_cached_tokens as usize;
            assert!(cached < num_tokens);
            if bench.ended().len() > 6 {
                assert_eq!(cached, (num_tokens - 1) / 16 * 16);
            }
        }
    }
}

#[test]
fn br_20_nothing_is_live_when_idle() {
    for max_open_steps in LOOPS {
        let mut bench = bench(16, 512, max_open_steps);
        let seqs: Vec<_> = (0..20).map(|n| add(&mut bench, 20 + n, 20).unwrap()).collect();
        bench.abort(seqs[15]);
        (0..10).for_each(|_| drop(bench.step()));
        bench.abort(seqs[0]);
        bench.run(1000); // checks that live = 0 and free + cached = total at the end
        assert_eq!(bench.ended().len(), 20);
    }
}

#[test]
fn br_23_siblings_copy_the_partial_block_once_each() {
    for max_open_steps in LOOPS {
        let mut bench = bench(32, 512, max_open_steps);
        let parent = add(&mut bench, 20, 30).unwrap();
        while bench.scheduler().seq(parent).unwrap().num_computed_tokens() < 20 {
            bench.step();
        }
        for seed in [2, 3] {
            bench.fork(parent, 20, seed).unwrap();
        }
        bench.run(100);
        assert_eq!((bench.coverage().num_copies, bench.ended().len()), (2, 3));
    }
}

/// The same with a preemption in the middle: the child that gave way computes its shared part again, or finds it cached.
#[test]
fn br_23_a_sibling_that_gives_way_keeps_the_others_blocks() {
    for max_open_steps in LOOPS {
        for after in [1, 9, 20] {
            let policy = Box::new(PreemptAfter(vec![after]));
            let mut bench = Simulation::new(config(32, 512, max_open_steps), policy);
            let parent = add(&mut bench, 20, 30).unwrap();
            while bench.scheduler().seq(parent).unwrap().num_computed_tokens() < 20 {
                bench.step();
            }
            let children = [2, 3].map(|seed| bench.fork(parent, 20, seed).unwrap());
            let first_block = |seq| bench.scheduler().block_table(seq)[0];
            assert!(children.iter().all(|child| first_block(*child) == first_block(parent)));
            bench.run(200); // checks each text against its lone run, and that all blocks come back
            let preempted = bench.ended().iter().filter(|ended| ended.sequence.num_preemptions == 1);
            assert_eq!((preempted.count(), bench.ended().len()), (1, 3));
        }
    }
}

#[test]
fn br_38_prompts_at_the_limit() {
    let mut bench = bench(64, 100, 1);
    assert_eq!(add(&mut bench, 0, 1), Err(AddError::EmptyPrompt));
    let too_long = AddError::PromptTooLong { num_tokens: 100, max_model_len: 100 };
    assert_eq!(add(&mut bench, 100, 2), Err(too_long));
    let too_long = AddError::PromptTooLong { num_tokens: 101, max_model_len: 100 };
    assert_eq!(add(&mut bench, 101, 1), Err(too_long));
    assert_eq!(add(&mut bench, 99, 0), Err(AddError::NoOutput));
    add(&mut bench, 99, u32::MAX).unwrap();
    bench.run(10);
    assert_eq!(bench.ended()[0].sequence.reason, FinishReason::Length);
    // One token is sampled and needs no place.
    add(&mut bench, 100, 1).unwrap();
    bench.run(10);
    assert_eq!(bench.ended()[1].sequence.tokens.len(), 101);
}

#[test]
fn whoever_waits_is_told_why() {
    let mut bench = bench(8, 512, 1);
    let seqs: Vec<_> = (0..4).map(|n| add(&mut bench, 80 + n, 8).unwrap()).collect();
    bench.step();
    let why = |seq: SeqId| bench.scheduler().explain(seq, bench.now()).unwrap().waits_for;
    assert_eq!(why(seqs[0]), None);
    assert!(matches!(why(seqs[1]), Some(WaitReason::Refused(Refusal::NoBlocks(_)))), "{:?}", why(seqs[1]));
    assert_eq!(why(seqs[3]), Some(WaitReason::Behind { head: seqs[1], place: 2 }));
    let waiting = bench.scheduler().waiting_by_reason().into_iter().filter(|(_, num)| *num > 0);
    assert_eq!(waiting.collect::<Vec<_>>(), [(WaitClass::Queue, 2), (WaitClass::Blocks, 1)]);
    (0..3).for_each(|_| drop(bench.step()));
    let explained = bench.scheduler().explain(seqs[1], bench.now()).unwrap();
    assert_eq!((explained.status, explained.waiting.as_millis()), (SeqStatus::Waiting, 4));
    bench.run(100);
    assert_eq!(bench.scheduler().explain(seqs[1], bench.now()), None);
}
