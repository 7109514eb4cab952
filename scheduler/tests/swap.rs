//! Sequences that give way by moving their blocks to the host.

use quire_kvcache::{KvCacheConfig, SwapFull};
use quire_scheduler::testing::{Simulation, SimulationConfig};
use quire_scheduler::{
    Direction, NewSequence, Preemption, PreemptionMode, Rank, Rates, Refusal, SchedulerConfig,
    SchedulerPolicy, SeqId, SeqStatus, SequenceView, StepBuilder, standard_plan,
};

const LOOPS: [usize; 3] = [1, 2, 3];

/// First come, first served, but the second sequence gives way each time that it has generated so many tokens.
struct GiveWayAfter {
    num_tokens: Vec<u32>,
    how: Option<PreemptionMode>,
}

impl SchedulerPolicy for GiveWayAfter {
    fn name(&self) -> &str {
        "give-way-after"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let due =
            step.seq(SeqId(1)).is_some_and(|seq| self.num_tokens.first() == Some(&seq.num_output_tokens()));
        if due {
            let outcome = match self.how {
                Some(how) => step.preempt(SeqId(1), how),
                None => step.give_way(SeqId(1)).map(drop),
            };
            if outcome.is_ok() {
                self.num_tokens.remove(0);
            }
        }
        standard_plan(self, step);
    }
}

fn bench(num_swap_blocks: u32, max_open_steps: usize, policy: GiveWayAfter) -> Simulation {
    let mut cache = KvCacheConfig::new(64, 16);
    (cache.watermark, cache.num_swap_blocks, cache.groups[0].block_bytes) = (0.0, num_swap_blocks, 1 << 20);
    let mut scheduler = SchedulerConfig::new(512);
    scheduler.max_prefill_chunk = Some(7);
    Simulation::new(SimulationConfig { scheduler, cache, max_open_steps }, Box::new(policy))
}

fn add(bench: &mut Simulation, num_prompt_tokens: u32, num_output_tokens: u32) -> SeqId {
    let seed = u64::from(num_prompt_tokens);
    let prompt = Simulation::prompt(seed, num_prompt_tokens);
    bench.add(NewSequence::new(prompt, num_output_tokens, bench.now()), seed, false).unwrap()
}

fn swap_after(num_tokens: &[u32]) -> GiveWayAfter {
    GiveWayAfter { num_tokens: num_tokens.to_vec(), how: Some(PreemptionMode::Swap) }
}

/// The bench checks that the tokens are those of a lone run, and that each is delivered once.
#[test]
fn a_swapped_sequence_goes_on_where_it_was() {
    for max_open_steps in LOOPS {
        for after in [&[1][..], &[10], &[39], &[1, 10, 39], &[0, 0, 59]] {
            let mut bench = bench(16, max_open_steps, swap_after(after));
            add(&mut bench, 30, 120);
            add(&mut bench, 31, 60);
            bench.run(400);
            let ended = bench.ended().iter().find(|ended| ended.sequence.id == SeqId(1)).unwrap();
            assert_eq!((ended.sequence.num_preemptions as usize, ended.delivered.len()), (after.len(), 60));
            let coverage = bench.coverage();
            assert!(coverage.num_swapped_out > 0, "{coverage:?}");
            let stats = bench.scheduler().stats();
            assert_eq!((stats.num_swaps, stats.num_swapped), (after.len() as u64, 0));
        }
    }
}

/// What is in the prefix cache when a sequence comes back need not be moved; what is not computed again is.
#[test]
fn a_swapped_sequence_computes_nothing_again() {
    for enable_prefix_caching in [false, true] {
        let mut cache = KvCacheConfig::new(64, 16);
        (cache.watermark, cache.num_swap_blocks) = (0.0, 16);
        cache.enable_prefix_caching = enable_prefix_caching;
        let config = SimulationConfig { scheduler: SchedulerConfig::new(512), cache, max_open_steps: 1 };
        let mut bench = Simulation::new(config, Box::new(swap_after(&[20])));
        add(&mut bench, 30, 100);
        add(&mut bench, 70, 40);
        bench.run(400);
        let stats = bench.scheduler().stats();
        assert_eq!(stats.num_scheduled_tokens, 30 + 99 + 70 + 39, "each position is computed once");
        let coverage = bench.coverage();
        let num_blocks = u64::from(u32::div_ceil(70 + 19, 16));
        assert_eq!(coverage.num_swapped_out, num_blocks);
        assert_eq!(coverage.num_swapped_in, if enable_prefix_caching { 1 } else { num_blocks });
    }
}

/// `known-failures.md`, seen in the source of 0.7.3: a swap space of 4 blocks that is too small for a victim of 10 must not
/// end the engine.
#[test]
fn seen_in_0_7_3_full_swap_space_means_recompute() {
    for max_open_steps in LOOPS {
        let policy = GiveWayAfter { num_tokens: vec![5], how: None };
        let mut cache = KvCacheConfig::new(64, 16);
        (cache.watermark, cache.num_swap_blocks) = (0.0, 4);
        let scheduler = SchedulerConfig { preemption: Preemption::Swap, ..SchedulerConfig::new(512) };
        let mut bench =
            Simulation::new(SimulationConfig { scheduler, cache, max_open_steps }, Box::new(policy));
        add(&mut bench, 30, 60);
        add(&mut bench, 150, 20);
        bench.run(400);
        let stats = bench.scheduler().stats();
        assert_eq!((stats.num_preemptions, stats.num_swaps), (1, 0));
    }
}

/// Asks for what cannot be, and notes the answers.
struct Asking(std::sync::mpsc::Sender<Refusal>);

impl SchedulerPolicy for Asking {
    fn name(&self) -> &str {
        "asking"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        for seq in [SeqId(0), SeqId(1), SeqId(7)] {
            let outcomes = [step.preempt(seq, PreemptionMode::Swap), step.swap_in(seq)];
            outcomes.into_iter().filter_map(Result::err).for_each(|refusal| self.0.send(refusal).unwrap());
        }
        standard_plan(self, step);
    }
}

#[test]
fn each_refusal_says_why() {
    let (sender, refusals) = std::sync::mpsc::channel();
    let mut cache = KvCacheConfig::new(64, 16);
    (cache.watermark, cache.num_swap_blocks) = (0.0, 1);
    let config = SimulationConfig { scheduler: SchedulerConfig::new(512), cache, max_open_steps: 1 };
    let mut bench = Simulation::new(config, Box::new(Asking(sender)));
    add(&mut bench, 20, 3);
    add(&mut bench, 30, 3);
    (0..2).for_each(|_| drop(bench.step()));
    let refusals: Vec<_> = refusals.try_iter().collect();
    let full = Refusal::SwapFull(SwapFull { need: 2, free: 1, total: 1 });
    for refusal in [Refusal::NotRunning, Refusal::NotSwapped, Refusal::Unknown, Refusal::Oldest, full] {
        assert!(refusals.contains(&refusal), "{refusal:?} in {refusals:?}");
    }
    bench.run(100);
}

/// Steps until the second sequence is in the wanted state, which it enters with a swap; then aborts it.
#[test]
fn an_abort_in_either_state_waits_for_the_transfer() {
    for max_open_steps in LOOPS {
        for wanted in [Direction::Out, Direction::In] {
            let mut bench = bench(16, max_open_steps, swap_after(&[3]));
            add(&mut bench, 30, 60);
            let seq = add(&mut bench, 70, 60);
            let started = |bench: &mut Simulation| {
                let transfers = bench.step().into_iter().flat_map(|plan| plan.transfers);
                transfers.map(|transfer| transfer.direction).collect::<Vec<_>>().contains(&wanted)
            };
            while !started(&mut bench) {}
            let status = if wanted == Direction::Out { SeqStatus::Swapped } else { SeqStatus::Running };
            let is_open = |bench: &Simulation| bench.scheduler().cache().swap_usage().num_transfers == 1;
            let was_open = is_open(&bench);
            if was_open {
                assert_eq!(bench.scheduler().seq(seq).unwrap().status(), status);
            }
            let before = bench.scheduler().cache().swap_usage();
            bench.abort(seq);
            let after = bench.scheduler().cache().swap_usage();
            if was_open {
                assert_eq!(after, before, "both sides stay taken until the transfer is done");
            }
            bench.run(400); // checks that all blocks come back on either side
        }
    }
}

/// What a sequence that gives way may be found in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// Its blocks are on their way to the host.
    SwappingOut,
    /// They are there.
    Swapped,
    /// They are on their way back.
    SwappingIn,
    /// It gave way by recompute, and a step that is open still brings a result of it.
    LateAfterRecompute,
    /// The same, by swap.
    LateAfterSwap,
}

impl Found {
    const ALL: [Self; 5] =
        [Self::SwappingOut, Self::Swapped, Self::SwappingIn, Self::LateAfterRecompute, Self::LateAfterSwap];

    fn is_met(self, bench: &Simulation, seq: SeqId, late: bool) -> bool {
        let Some(status) = bench.scheduler().seq(seq).map(|seq| seq.status()) else { return false };
        let has_transfer = bench.scheduler().cache().swap_usage().num_transfers > 0;
        match self {
            Self::SwappingOut => status == SeqStatus::Swapped && has_transfer,
            Self::Swapped => status == SeqStatus::Swapped && !has_transfer,
            Self::SwappingIn => status == SeqStatus::Running && has_transfer,
            Self::LateAfterRecompute => status == SeqStatus::Waiting && late,
            Self::LateAfterSwap => status == SeqStatus::Swapped && late,
        }
    }
}

/// An abort that hits each state, on purpose. The bench holds the invariants after each step, that nothing reads or writes
/// a block that is taken, that the result of the earlier life is dropped, and that all blocks come back on either side.
#[test]
fn an_abort_is_met_in_every_state_of_a_transfer() {
    for found in Found::ALL {
        let how = match found {
            Found::LateAfterRecompute => PreemptionMode::Recompute,
            _ => PreemptionMode::Swap,
        };
        let is_late = matches!(found, Found::LateAfterRecompute | Found::LateAfterSwap);
        let mut num_met = 0;
        for (max_open_steps, after) in
            LOOPS.into_iter().flat_map(|open| (1..8).map(move |after| (open, after)))
        {
            let policy = GiveWayAfter { num_tokens: vec![after], how: Some(how) };
            let mut bench = bench(16, max_open_steps, policy);
            add(&mut bench, 30, 60);
            let seq = add(&mut bench, 70, 60);
            let mut late = false;
            while bench.scheduler().seq(seq).is_some() && !found.is_met(&bench, seq, late) {
                let plan = bench.step();
                let gave_way = plan.is_some_and(|plan| plan.preempted.contains(&seq));
                late = gave_way && bench.scheduler().num_open_steps() > 1;
            }
            if bench.scheduler().seq(seq).is_none() {
                continue;
            }
            num_met += 1;
            let num_dropped = bench.coverage().num_dropped_rows;
            let swap = bench.scheduler().cache().swap_usage();
            bench.abort(seq);
            let left = bench.scheduler().cache().swap_usage();
            match found {
                Found::Swapped => assert_eq!(left.free, left.total, "nothing moves: it is free at once"),
                Found::LateAfterRecompute => assert_eq!(left.free, left.total),
                _ => assert_eq!(left, swap, "both sides stay taken until the transfer is done"),
            }
            bench.run(400);
            assert!(!is_late || bench.coverage().num_dropped_rows > num_dropped, "{found:?}");
            assert_eq!(bench.ended().len(), 2);
        }
        println!("{found:?}: met {num_met} times");
        assert!(num_met >= 3, "{found:?}: met {num_met} times");
    }
}

#[test]
fn after_a_device_error_swapped_sequences_start_over() {
    for max_open_steps in LOOPS {
        for num_more_steps in 0..4 {
            let mut bench = bench(16, max_open_steps, swap_after(&[3]));
            add(&mut bench, 30, 60);
            let seq = add(&mut bench, 70, 60);
            while bench.scheduler().seq(seq).is_some_and(|seq| seq.num_preemptions() == 0) {
                bench.step();
            }
            (0..num_more_steps).for_each(|_| drop(bench.step()));
            bench.fail_device();
            assert_eq!(bench.scheduler().stats().num_swapped, 0);
            bench.run(400);
            assert_eq!(bench.ended().len(), 2);
        }
    }
}

#[test]
fn the_cheaper_way_is_taken() {
    let num_swaps = |rates: Option<Rates>, preemption| {
        let policy = GiveWayAfter { num_tokens: vec![20], how: None };
        let mut cache = KvCacheConfig::new(64, 16);
        (cache.watermark, cache.num_swap_blocks, cache.groups[0].block_bytes) = (0.0, 32, 1 << 20);
        let scheduler = SchedulerConfig { preemption, ..SchedulerConfig::new(512) };
        let mut bench =
            Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, Box::new(policy));
        rates.into_iter().for_each(|rates| bench.set_rates(rates));
        add(&mut bench, 30, 60);
        add(&mut bench, 150, 40);
        bench.run(400);
        bench.scheduler().stats().num_swaps
    };
    // 11 blocks of 1 MiB both ways, or 169 tokens.
    let slow_link = Rates { swap_bytes_per_s: 1e8, prefill_tokens_per_s: 1e3 };
    let fast_link = Rates { swap_bytes_per_s: 1e9, prefill_tokens_per_s: 1e3 };
    assert_eq!(num_swaps(None, Preemption::Auto), 0, "nothing has been measured");
    assert_eq!(num_swaps(Some(slow_link), Preemption::Auto), 0);
    assert_eq!(num_swaps(Some(fast_link), Preemption::Auto), 1);
    assert_eq!(num_swaps(Some(slow_link), Preemption::Swap), 1);
    assert_eq!(num_swaps(Some(fast_link), Preemption::Recompute), 0);
}
