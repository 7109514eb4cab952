//! Random scenarios under the shipped policies and under nonsense.
//!
//! `QUIRE_SEED` moves the range of seeds; a failure prints the seed that broke. `QUIRE_OPERATIONS` is how many operations
//! every shipped policy and nonsense go through: additions, aborts, forks, device errors, plans and commits. The whole
//! million of each takes some minutes:
//!
//! ```sh
//! QUIRE_OPERATIONS=1000000 cargo test --release -p quire-scheduler --test simulation -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use quire_scheduler::testing::{ChaosPolicy, Coverage, Scenario, check_policy, check_policy_for};
use quire_scheduler::{
    ClassHeads, ClassId, EventKind, Fcfs, PolicyRegistry, PreemptionMode, Priority, Rank, Rerank, SchedEvent,
    SchedulerPolicy, SequenceView, StepBuilder, Time,
};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(num_seeds: u64) -> std::ops::Range<u64> {
    let start = variable("QUIRE_SEED").unwrap_or(0);
    println!("seeds from {start}");
    start..start + num_seeds
}

fn check(name: &str, make: impl Fn(u64) -> Box<dyn SchedulerPolicy>) {
    let start = variable("QUIRE_SEED").unwrap_or(0);
    let num_operations = variable("QUIRE_OPERATIONS").unwrap_or(60_000);
    println!("{name}: {num_operations} operations, seeds from {start}");
    let num_seeds = check_policy_for(make, start, num_operations);
    println!("{name}: {num_seeds} scenarios");
}

#[test]
fn shipped_policies_keep_every_promise() {
    let policies = PolicyRegistry::default();
    for name in policies.names() {
        check(name, |_| policies.build(name).unwrap());
    }
}

#[test]
fn nonsense_breaks_no_promise() {
    check("nonsense", |seed| Box::new(ChaosPolicy::new(seed)));
}

/// Found by chance: a fork in a pool of its own length, whose last block the prefix cache knew.
#[test]
fn a_fork_needs_no_more_than_its_own_length() {
    check_policy(|_| Box::new(Fcfs), 18_234..18_235);
    check_policy(|seed| Box::new(ChaosPolicy::new(seed)), 16_304..16_305);
}

/// Ranks the newest first, and so lets nobody finish by itself.
struct LastComeFirst;

impl SchedulerPolicy for LastComeFirst {
    fn name(&self) -> &str {
        "lcfs"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        Rank(-(seq.id().0 as i64), 0)
    }

    fn max_overtaking(&self) -> Option<Duration> {
        None
    }
}

#[test]
fn the_oldest_finishes_though_it_ranks_last() {
    check_policy(|_| Box::new(LastComeFirst), seeds(300));
}

/// Plans nothing, ever.
struct Idle;

impl SchedulerPolicy for Idle {
    fn name(&self) -> &str {
        "idle"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        Fcfs.rank(seq)
    }

    fn plan(&mut self, _step: &mut StepBuilder<'_>) {}

    fn max_overtaking(&self) -> Option<Duration> {
        None
    }
}

#[test]
fn a_policy_that_plans_nothing_does_not_stop_the_work() {
    check_policy(|_| Box::new(Idle), seeds(100));
}

/// Lets the waiting take turns, a token each, and has no time for the oldest.
struct Merry;

impl SchedulerPolicy for Merry {
    fn name(&self) -> &str {
        "merry"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        Rank(seq.served_tokens() as i64, 0)
    }

    fn max_overtaking(&self) -> Option<Duration> {
        None
    }

    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        Rerank::Seq(event.seq.id())
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let running: Vec<_> = step.running().iter().map(|seq| seq.id()).collect();
        for seq in running {
            let _ = step.preempt(seq, PreemptionMode::Recompute);
        }
        let next = step.heads().first().map(|head| head.id());
        if let Some(next) = next.filter(|next| step.admit(*next).is_ok()) {
            let _ = step.grant(next, 1);
        }
    }
}

#[test]
fn a_merry_go_round_comes_to_an_end() {
    check_policy(|_| Box::new(Merry), seeds(200));
}

#[test]
fn the_scenarios_meet_what_they_are_made_for() {
    let (mut coverage, mut num_hit_tokens) = (Coverage::default(), 0);
    for seed in 0..1000 {
        let bench = Scenario::from_seed(seed).run(Box::new(Fcfs));
        coverage += bench.coverage();
        num_hit_tokens += bench.scheduler().stats().prefix.hit_tokens;
    }
    println!("{coverage:?}, {num_hit_tokens} tokens hit");
    assert!(num_hit_tokens > 100);
    let Coverage {
        num_resumed_rows,
        num_unread_inputs,
        num_copies,
        num_swapped_out,
        num_swapped_in,
        num_waits_for_transfers,
        num_dropped_rows,
        num_awaited_commits,
        num_releases,
    } = coverage;
    let met = [
        num_resumed_rows,
        num_unread_inputs,
        num_copies,
        num_swapped_out,
        num_swapped_in,
        num_waits_for_transfers,
        num_dropped_rows,
        num_awaited_commits,
        num_releases,
    ];
    assert!(met.iter().all(|times| *times > 50), "{coverage:?}");
}

/// Whether the bench finds fault with a policy, and with what.
fn fault(make: impl Fn(u64) -> Box<dyn SchedulerPolicy> + std::panic::RefUnwindSafe) -> Option<String> {
    let found = std::panic::catch_unwind(|| check_policy(&make, 0..30)).err()?;
    let text = found.downcast_ref::<String>().cloned();
    text.or_else(|| found.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

/// Ranks by what changes from call to call, as a clock does.
#[derive(Default)]
struct Moody;

/// What a clock or a generator of its own would be.
static MOOD: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

impl SchedulerPolicy for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn rank(&self, _seq: &SequenceView<'_>) -> Rank {
        Rank(MOOD.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 7, 0)
    }
}

#[test]
fn a_policy_that_decides_otherwise_the_second_time_is_found_out() {
    let fault = fault(|_| Box::new(Moody)).expect("it is found out");
    assert!(fault.contains("the same calls bring other decisions, from step "), "{fault}");
}

/// Keeps a count and says that it is saved.
#[derive(Default)]
struct Forgetful {
    num_events: i64,
    saves: bool,
}

impl SchedulerPolicy for Forgetful {
    fn name(&self) -> &str {
        "forgetful"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        Rank((seq.id().0 as i64 * self.num_events) % 7, 0)
    }

    fn on_event(&mut self, _event: &SchedEvent<'_>) -> Rerank {
        self.num_events += 1;
        Rerank::None
    }

    fn max_overtaking(&self) -> Option<Duration> {
        None
    }

    fn save(&self) -> Option<Vec<u64>> {
        Some(if self.saves { vec![self.num_events as u64] } else { Vec::new() })
    }

    fn restore(&mut self, state: &[u64]) -> bool {
        self.num_events = state.first().map_or(0, |num_events| *num_events as i64);
        true
    }
}

#[test]
fn a_policy_that_loses_its_state_is_found_out() {
    let fault_of = |saves| fault(move |_| Box::new(Forgetful { saves, num_events: 0 }));
    let found = fault_of(false).expect("it is found out");
    assert!(found.contains("saved and restored decides otherwise, from step "), "{found}");
    assert_eq!(fault_of(true), None);
}

/// Serves those of a kind when nobody else is there.
struct Greedy {
    rank: fn(&SequenceView<'_>) -> i64,
    max_overtaking: Duration,
}

impl SchedulerPolicy for Greedy {
    fn name(&self) -> &str {
        "greedy"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        Rank((self.rank)(seq), seq.id().0 as i64)
    }

    fn max_overtaking(&self) -> Option<Duration> {
        Some(self.max_overtaking)
    }
}

/// Whoever was served least is next, and who was never seen before all.
#[derive(Default)]
struct LeastServed(BTreeMap<ClassId, u64>);

impl SchedulerPolicy for LeastServed {
    fn name(&self) -> &str {
        "least-served"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        ClassId(seq.tenant().0)
    }

    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: Time) -> Option<ClassId> {
        heads.iter().map(|head| head.class()).min_by_key(|class| self.0.get(class))
    }

    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        if let EventKind::Granted { num_tokens } = event.kind {
            *self.0.entry(event.seq.class()).or_default() += u64::from(num_tokens);
        }
        Rerank::None
    }
}

#[test]
fn a_policy_that_lets_requests_starve_is_found_out_unless_it_says_so() {
    let ranks: [fn(&SequenceView<'_>) -> i64; 8] = [
        |seq| -(seq.id().0 as i64),
        |seq| seq.num_prompt_tokens().into(),
        |seq| -i64::from(seq.num_prompt_tokens()),
        |seq| (seq.num_prompt_tokens() > 500).into(),
        |seq| (seq.priority() > 5).into(),
        |seq| (seq.priority() < -5).into(),
        |seq| seq.max_output_tokens().into(),
        |seq| -i64::from(seq.max_output_tokens()),
    ];
    for (index, rank) in ranks.into_iter().enumerate() {
        let max_overtaking = Duration::from_secs(600);
        let fault = fault(move |_| Box::new(Greedy { rank, max_overtaking }));
        let fault = fault.unwrap_or_else(|| panic!("number {index} is not found out"));
        assert!(fault.contains("greedy: a request is overtaken by others for "), "{fault}");
    }
    let found = fault(|_| Box::new(LeastServed::default())).expect("new tenants come without end");
    assert!(found.contains("least-served: a request is overtaken by others for "), "{found}");
    let (rank, max_overtaking) = (ranks[0], Duration::MAX);
    let found = fault(move |_| Box::new(Greedy { rank, max_overtaking })).expect("that is no bound");
    assert!(found.contains("which is no bound"), "{found}");
    check_policy(|_| Box::new(Priority::strict()), 0..1);
}
