//! Every reason that a sequence may wait for: produced, told and counted.

use quire_scheduler::testing::{Simulation, SimulationConfig};
use quire_scheduler::{
    Fair, Fcfs, HoldReason, KvCacheConfig, NewSequence, PreemptionMode, Rank, Refusal, SchedulerConfig,
    SchedulerPolicy, SeqId, SequenceView, StepBuilder, TenantId, WaitClass, WaitReason, standard_plan,
};

fn bench(scheduler: SchedulerConfig, num_blocks: u32, policy: impl SchedulerPolicy + 'static) -> Simulation {
    let mut cache = KvCacheConfig::new(num_blocks, 16);
    (cache.watermark, cache.num_swap_blocks) = (0.0, 64);
    Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, Box::new(policy))
}

fn add(bench: &mut Simulation, num_prompt_tokens: u32, num_output_tokens: u32) -> SeqId {
    let seed = u64::from(num_prompt_tokens) + bench.num_operations();
    let prompt = Simulation::prompt(seed, num_prompt_tokens);
    bench.add(NewSequence::new(prompt, num_output_tokens, bench.now()), seed, false).unwrap()
}

/// The sequence waits for something of that class; its age and how long it waits go with it.
#[track_caller]
fn check(bench: &Simulation, seq: SeqId, class: WaitClass, is_expected: impl Fn(WaitReason) -> bool) {
    let why = bench.scheduler().explain(seq, bench.now()).expect("it has not ended");
    let reason = why.waits_for.expect("it waits");
    assert!(is_expected(reason), "{reason:?}");
    assert!(why.waiting <= why.age);
    let counts = bench.scheduler().waiting_by_reason();
    let counted = counts.into_iter().find(|(counted, _)| *counted == class);
    assert!(counted.is_some_and(|(_, number)| number > 0), "{counts:?}");
}

#[test]
fn blocks_needed_and_there() {
    let mut bench = bench(SchedulerConfig::new(512), 8, Fcfs);
    let [_, second] = [80, 90].map(|num_tokens| add(&mut bench, num_tokens, 8));
    bench.step();
    check(&bench, second, WaitClass::Blocks, |reason| {
        let WaitReason::Refused(Refusal::NoBlocks(short)) = reason else { return false };
        (short.need, short.available) == (6, 3)
    });
    bench.run(100);
}

#[test]
fn the_limit_of_sequences_and_who_comes_first() {
    let mut bench = bench(SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::new(512) }, 64, Fcfs);
    let seqs = [20, 21, 22, 23].map(|num_tokens| add(&mut bench, num_tokens, 8));
    check(&bench, seqs[0], WaitClass::Queue, |reason| reason == WaitReason::NextStep);
    bench.step();
    let limit = WaitReason::Refused(Refusal::SeqLimit { limit: 1 });
    check(&bench, seqs[1], WaitClass::SeqLimit, |reason| reason == limit);
    let behind = WaitReason::Behind { head: seqs[1], place: 2 };
    check(&bench, seqs[3], WaitClass::Queue, |reason| reason == behind);
    bench.run(100);
}

/// The heads of queues that are not asked for while no seat is free.
#[test]
fn the_heads_of_other_tenants_wait_for_a_seat() {
    let config = SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::new(512) };
    let mut bench = bench(config, 64, Fair::default());
    let mut of_tenant = |tenant| {
        let mut new = NewSequence::new(Simulation::prompt(tenant, 20), 8, bench.now());
        new.tenant = TenantId(tenant);
        bench.add(new, tenant, false).unwrap()
    };
    let [_, second, third, fourth] = [1, 2, 3, 3].map(&mut of_tenant);
    check(&bench, third, WaitClass::Queue, |reason| reason == WaitReason::NextStep);
    bench.step();
    check(&bench, second, WaitClass::SeqLimit, |reason| {
        reason == WaitReason::Refused(Refusal::SeqLimit { limit: 1 })
    });
    check(&bench, third, WaitClass::Queue, |reason| reason == WaitReason::Full { limit: 1 });
    let behind = WaitReason::Behind { head: third, place: 1 };
    check(&bench, fourth, WaitClass::Queue, |reason| reason == behind);
    bench.run(100);
}

#[test]
fn the_token_budget() {
    let config = SchedulerConfig {
        enable_chunked_prefill: false,
        max_num_batched_tokens: 512,
        ..SchedulerConfig::new(300)
    };
    let mut bench = bench(config, 64, Fcfs);
    let [_, second] = [280, 281].map(|num_tokens| add(&mut bench, num_tokens, 8));
    bench.step();
    let budget = WaitReason::Refused(Refusal::TokenBudget { need: 281, left: 232 });
    check(&bench, second, WaitClass::TokenBudget, |reason| reason == budget);
    bench.run(100);
}

#[test]
fn prompts_computed_in_part() {
    let config = SchedulerConfig {
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_prefill_chunk: Some(16),
        max_num_partial_prefills: Some(1),
        ..SchedulerConfig::new(512)
    };
    let mut bench = bench(config, 64, Fcfs);
    let [_, second] = [80, 81].map(|num_tokens| add(&mut bench, num_tokens, 8));
    bench.step();
    let limit = WaitReason::Refused(Refusal::PartialPrefills { limit: 1 });
    check(&bench, second, WaitClass::PartialPrefills, |reason| reason == limit);
    bench.run(100);
}

/// Swaps the second sequence out once; asks for nonsense of the third while it waits.
struct Meddling {
    has_swapped: bool,
}

impl SchedulerPolicy for Meddling {
    fn name(&self) -> &str {
        "meddling"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let due = step.seq(SeqId(1)).is_some_and(|seq| seq.num_output_tokens() == 2);
        if due && !self.has_swapped {
            self.has_swapped = step.preempt(SeqId(1), PreemptionMode::Swap).is_ok();
        }
        standard_plan(self, step);
        let _ = step.grant(SeqId(2), 1);
    }
}

#[test]
fn blocks_on_their_way_and_what_a_policy_asked_for() {
    let mut bench = bench(
        SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::new(512) },
        64,
        Meddling { has_swapped: false },
    );
    let seqs = [20, 21, 22].map(|num_tokens| add(&mut bench, num_tokens, 40));
    bench.step();
    let nonsense = WaitReason::Refused(Refusal::NotRunning);
    check(&bench, seqs[2], WaitClass::Other, |reason| reason == nonsense);
    // Its blocks go out with the step that follows the second token, and are on their way in some of the runs of the bench.
    let on_its_way = WaitReason::Refused(Refusal::SwapInFlight);
    let explain = |bench: &Simulation| bench.scheduler().explain(seqs[1], bench.now());
    while explain(&bench).is_some_and(|why| why.waits_for != Some(on_its_way)) {
        bench.step();
    }
    let why = explain(&bench).expect("it is asked for while its blocks move");
    assert!(why.waiting < why.age || why.waiting.is_zero(), "{why:?}");
    bench.run(200);
}

#[test]
fn admission_that_was_lowered() {
    let mut bench = bench(SchedulerConfig::new(2048), 80, Fcfs);
    let seqs: Vec<_> = (0..60).map(|n| add(&mut bench, 120 + n % 3, 160)).collect();
    let is_thrashing = |bench: &Simulation, seq: SeqId| {
        let why = bench.scheduler().explain(seq, bench.now());
        matches!(why.and_then(|why| why.waits_for), Some(WaitReason::Refused(Refusal::Thrashing { .. })))
    };
    let found = loop {
        bench.step();
        if let Some(found) = seqs.iter().find(|seq| is_thrashing(&bench, **seq)) {
            break *found;
        }
    };
    check(&bench, found, WaitClass::Thrashing, |_| true);
    bench.run(20_000);
}

#[test]
fn a_grammar_and_an_adapter() {
    let mut bench = bench(SchedulerConfig::new(512), 64, Fcfs);
    let seq = add(&mut bench, 20, 8);
    for (reason, class) in
        [(HoldReason::Grammar, WaitClass::Grammar), (HoldReason::Adapter, WaitClass::Adapter)]
    {
        bench.hold(seq, reason);
        assert!(bench.step().is_none());
        check(&bench, seq, class, |told| told == WaitReason::Held(reason));
        bench.release(seq, reason);
    }
    bench.run(20);
}
