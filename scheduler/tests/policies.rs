//! What each shipped policy promises: its order, and the bound on a wait.

use std::collections::BTreeMap;
use std::time::Duration;

use quire_kvcache::KvCacheConfig;
use quire_scheduler::testing::{Ended, Rng, Simulation, SimulationConfig};
use quire_scheduler::{
    CapacityMode, Fair, Fcfs, ForkError, LengthBucket, NewSequence, PolicyRegistry, Preemption, PrefixAware,
    Priority, RowKind, SchedulerConfig, SchedulerPolicy, SeqId, ShortestFirst, TenantId, Time,
};

/// Virtual time of a step of the bench.
const STEP: Duration = Duration::from_millis(1);

fn bench(max_num_seqs: u32, num_blocks: u32, policy: Box<dyn SchedulerPolicy>) -> Simulation {
    let mut cache = KvCacheConfig::new(num_blocks, 16);
    cache.watermark = 0.0;
    let scheduler =
        SchedulerConfig { max_num_seqs, max_num_batched_tokens: 256, ..SchedulerConfig::new(1024) };
    Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, policy)
}

/// A sequence in terms of what policies look at.
#[derive(Clone, Copy)]
struct Load {
    num_prompt_tokens: u32,
    num_output_tokens: u32,
    priority: i32,
    tenant: u64,
    /// Tokens at its beginning that all sequences with the same number have.
    prefix: Option<u64>,
}

const SHORT: Load =
    Load { num_prompt_tokens: 24, num_output_tokens: 4, priority: 0, tenant: 0, prefix: None };

fn add(bench: &mut Simulation, load: Load, seed: u64) -> SeqId {
    let mut prompt = load.prefix.map_or(Vec::new(), |prefix| Simulation::prompt(prefix, 16));
    prompt.extend(Simulation::prompt(1_000_000 + seed, load.num_prompt_tokens - prompt.len() as u32));
    let mut new = NewSequence::new(prompt, load.num_output_tokens, bench.now());
    (new.priority, new.tenant) = (load.priority, TenantId(load.tenant));
    bench.add(new, seed, false).unwrap()
}

/// Sequences in the order in which they first ran, once all have ended.
fn order_of_starts(bench: &mut Simulation) -> Vec<SeqId> {
    bench.run(100_000);
    let mut starts: Vec<_> = bench.ended().iter().map(|ended| &ended.sequence).collect();
    starts.sort_by_key(|seq| (seq.first_admitted, seq.id));
    starts.into_iter().map(|seq| seq.id).collect()
}

/// Lets `loads` wait behind one that runs, one sequence at a time.
#[track_caller]
fn check_order(policy: impl SchedulerPolicy + 'static, loads: &[Load], expected: &[u64]) {
    let mut bench = bench(1, 64, Box::new(policy));
    add(&mut bench, SHORT, 0);
    bench.step();
    for (seed, load) in (1..).zip(loads) {
        add(&mut bench, *load, seed);
    }
    let order = order_of_starts(&mut bench);
    assert_eq!(order[1..], expected.iter().map(|place| SeqId(*place)).collect::<Vec<_>>());
}

#[test]
fn fcfs_is_the_order_of_arrival() {
    let long = Load { num_prompt_tokens: 300, priority: -5, ..SHORT };
    check_order(Fcfs, &[SHORT, long, SHORT], &[1, 2, 3]);
}

#[test]
fn lower_priorities_run_first_and_ties_by_arrival() {
    let of = |priority| Load { priority, ..SHORT };
    let loads = [of(0), of(7), of(-3), of(7), of(-3), of(i32::MIN), of(i32::MAX)];
    check_order(Priority::default(), &loads, &[6, 3, 5, 1, 2, 4, 7]);
    check_order(Priority::strict(), &loads, &[6, 3, 5, 1, 2, 4, 7]);
}

#[test]
fn short_prompts_run_first() {
    let of = |num_prompt_tokens| Load { num_prompt_tokens, ..SHORT };
    check_order(ShortestFirst::default(), &[of(200), of(90), of(30), of(500)], &[3, 2, 1, 4]);
}

#[test]
fn tenants_take_turns() {
    let of = |tenant| Load { tenant, ..SHORT };
    check_order(Fair::default(), &[of(1), of(1), of(1), of(2), of(2), of(3)], &[1, 4, 6, 2, 5, 3]);
}

#[test]
fn a_bucket_is_served_until_it_is_empty() {
    let of = |num_prompt_tokens| Load { num_prompt_tokens, ..SHORT };
    check_order(LengthBucket::default(), &[of(20), of(300), of(25), of(400), of(31)], &[1, 3, 5, 2, 4]);
    check_order(LengthBucket::new(Duration::ZERO), &[of(20), of(300), of(25)], &[1, 3, 2]);
}

#[test]
fn the_longest_cached_beginning_runs_first() {
    let of = |prefix| Load { num_prompt_tokens: 24, prefix: Some(prefix), ..SHORT };
    // While 3 runs it becomes known that 6 begins like it, too.
    check_order(PrefixAware::default(), &[of(1), of(2), of(3), of(2), of(1), of(3)], &[1, 5, 2, 4, 3, 6]);
}

#[test]
fn every_policy_is_known_by_its_name() {
    let policies = PolicyRegistry::default();
    let names = ["fair", "fcfs", "length-bucket", "prefix-aware", "priority", "shortest-first"];
    assert!(policies.names().eq(names));
    for name in names {
        assert_eq!(policies.build(name).unwrap().name(), name);
    }
}

const AGEING: Duration = Duration::from_millis(400);

fn ageing_policies() -> Vec<Box<dyn SchedulerPolicy>> {
    vec![
        Box::new(Fcfs),
        Box::new(Priority::new(AGEING)),
        Box::new(ShortestFirst::new(AGEING)),
        Box::new(PrefixAware::new(AGEING)),
        Box::new(LengthBucket::new(AGEING)),
    ]
}

/// Both capacity modes, without and with swap.
fn modes() -> impl Iterator<Item = (CapacityMode, Preemption)> {
    let modes = [CapacityMode::MaxUtilization, CapacityMode::Guaranteed];
    modes.into_iter().flat_map(|mode| [Preemption::Recompute, Preemption::Swap].map(|swap| (mode, swap)))
}

/// As [`bench`], in a mode; with swap the host has room for a few sequences.
fn bench_in(
    (capacity_mode, preemption): (CapacityMode, Preemption),
    (max_num_seqs, num_blocks): (u32, u32),
    policy: Box<dyn SchedulerPolicy>,
) -> Simulation {
    let num_swap_blocks = if preemption == Preemption::Swap { 24 } else { 0 };
    let cache = KvCacheConfig { num_swap_blocks, watermark: 0.0, ..KvCacheConfig::new(num_blocks, 16) };
    let scheduler = SchedulerConfig {
        max_num_seqs,
        max_num_batched_tokens: 256,
        capacity_mode,
        preemption,
        ..SchedulerConfig::new(1024)
    };
    Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, policy)
}

/// Whatever comes, in whatever order it is served and whatever the mode, nobody is overtaken by one that came `ageing`
/// later.
#[test]
fn nobody_is_overtaken_by_one_that_came_later_than_the_ageing() {
    for (mode, seed) in modes().flat_map(|mode| (0..6).map(move |seed| (mode, seed))) {
        for policy in ageing_policies() {
            let name = policy.name().to_owned();
            let mut rng = Rng::new(seed);
            let mut bench = bench_in(mode, (3, 40), policy);
            for step in 0..1500 {
                if rng.range(0..1000) < 420 {
                    let load = Load {
                        num_prompt_tokens: rng.choose(&[17, 24, 60, 250]),
                        num_output_tokens: rng.range(1..9),
                        priority: rng.range(0..40) as i32 - 20,
                        tenant: 0,
                        prefix: rng.choose(&[None, Some(1), Some(2), Some(3)]),
                    };
                    add(&mut bench, load, step);
                }
                bench.step();
            }
            bench.run(100_000);
            check_overtaking(&bench, &format!("{name}, {mode:?}, seed {seed}"), name != "fcfs");
        }
    }
}

#[track_caller]
fn check_overtaking(bench: &Simulation, name: &str, has_order_of_its_own: bool) {
    let mut starts: Vec<_> = bench.ended().iter().map(|ended| &ended.sequence).collect();
    starts.sort_by_key(|seq| (seq.first_admitted, seq.arrival));
    let (mut num_overtakings, mut latest) = (0, Time::ZERO);
    for seq in starts {
        num_overtakings += u32::from(seq.arrival < latest);
        let late = latest.since(seq.arrival);
        assert!(late <= AGEING, "{name}: {} was overtaken by one {late:?} younger", seq.id);
        latest = latest.max(seq.arrival);
    }
    assert_eq!(num_overtakings > 0, has_order_of_its_own, "{name}");
}

/// The formula in the documentation: with `A` the ageing, a request starts within `A` and the sum, over all that wait or run
/// when it comes or come within `A`, of `(1 + p) × (n + o)` steps, where `p` is how often one gave way.
#[test]
fn a_wait_lies_within_the_documented_sum() {
    for (mode, seed) in modes().flat_map(|mode| (0..4).map(move |seed| (mode, seed))) {
        for policy in ageing_policies() {
            let name = format!("{}, {mode:?}, seed {seed}", policy.name());
            let mut rng = Rng::new(seed);
            // Some 18 blocks for outputs that are not known: who runs outgrows the pool.
            let mut bench = bench_in(mode, (4, 18), policy);
            for step in 0..400 {
                if rng.one_in(8) {
                    let load = Load {
                        num_prompt_tokens: rng.range(17..90),
                        num_output_tokens: rng.range(1..90),
                        priority: rng.range(0..40) as i32 - 20,
                        tenant: 0,
                        prefix: rng.choose(&[None, Some(1)]),
                    };
                    add(&mut bench, load, step);
                }
                bench.step();
            }
            bench.run(100_000);
            check_waits(&bench, &name, mode.0);
        }
    }
}

#[track_caller]
fn check_waits(bench: &Simulation, name: &str, mode: CapacityMode) {
    let end = |ended: &Ended| Time::ZERO + STEP * ended.at as u32;
    // Only by priority one gives way though there is room.
    let most = match (mode, bench.scheduler().policy_name()) {
        (_, "priority") => u32::MAX,
        (CapacityMode::Guaranteed, _) => 0,
        _ => 2,
    };
    for of in bench.ended() {
        let seq = &of.sequence;
        // Each computes a token at least of what its present life is about.
        let ahead = bench.ended().iter().filter(|other| {
            other.sequence.id != seq.id
                && end(other) >= seq.arrival
                && other.sequence.arrival <= seq.arrival + AGEING
        });
        let lives = |other: &Ended| u64::from(1 + other.sequence.num_preemptions);
        let sum: u64 = ahead.map(|other| lives(other) * other.sequence.tokens.len() as u64).sum();
        let wait = seq.first_admitted.expect("it ran").since(seq.arrival).as_nanos() / STEP.as_nanos();
        let bound = AGEING.as_nanos() / STEP.as_nanos() + u128::from(sum);
        assert!(wait <= bound, "{name}: {} waited {wait} steps, bound {bound}", seq.id);
        assert!(seq.num_preemptions <= most, "{name}: {} gave way {} times", seq.id, seq.num_preemptions);
    }
}

/// What [`Fair`] charges for a request: 10 a token of its prompt, none of which is cached here, 20 a token of its output.
fn cost(load: Load) -> u64 {
    10 * u64::from(load.num_prompt_tokens) + 20 * u64::from(load.num_output_tokens)
}

/// The bound of [`Fair`]: with `m` tenants, `R` sequences that run at once, `C` what a request costs at most and `W` what is
/// left of its tenant's when it comes, a request starts before `m × (W + (R + 1) × C)` has been served. One tenant sends as much
/// as the device serves, and again as much; the others what they like.
#[test]
fn fair_holds_its_bound_whatever_others_send() {
    let mut worst: f64 = 0.0;
    for (mode, seed) in modes().flat_map(|mode| (0..6).map(move |seed| (mode, seed))) {
        let (num_tenants, max_num_seqs) = (8, 4);
        let mut bench = bench_in(mode, (max_num_seqs, 64), Box::new(Fair::default()));
        let mut rng = Rng::new(seed);
        let mut open: BTreeMap<SeqId, FairRequest> = BTreeMap::new();
        let (mut served, mut num_started, mut largest) = (0, 0, 0);
        for step in 0..4000 {
            for tenant in 0..num_tenants {
                // The aggressive one is tenant 0; tenant 7 comes once in a while.
                let one_in = [6, 90, 90, 120, 120, 200, 200, 900][tenant as usize];
                if step < 3000 && rng.one_in(one_in) {
                    let (num_prompt_tokens, num_output_tokens) = (rng.range(17..120), rng.range(1..60));
                    let load = Load { num_prompt_tokens, num_output_tokens, tenant, ..SHORT };
                    let own = open.values().filter(|request| request.tenant == tenant);
                    let ahead = own.map(|request| request.left).sum();
                    let id = add(&mut bench, load, step << 8 | tenant);
                    largest = largest.max(cost(load));
                    open.insert(id, FairRequest { tenant, left: cost(load), ahead, served_before: served });
                }
            }
            let Some(plan) = bench.step() else { continue };
            for row in &plan.rows {
                let Some(request) = open.get_mut(&row.seq) else { continue };
                let mut charged = 0;
                if row.kind == RowKind::New {
                    num_started += 1;
                    charged = 10 * u64::from(bench_prompt(&bench, row.seq));
                    let bound = num_tenants * (request.ahead + u64::from(max_num_seqs + 1) * largest);
                    worst = worst.max((served - request.served_before) as f64 / bound as f64);
                    assert!(served - request.served_before <= bound, "{mode:?}, seed {seed}: {}", row.seq);
                }
                charged += if row.samples { 20 } else { 0 };
                served += charged;
                request.left = request.left.saturating_sub(charged);
            }
            open.retain(|seq, _| bench.scheduler().seq(*seq).is_some());
        }
        assert!(num_started > 300, "{num_started} requests started");
    }
    println!("the worst wait takes {worst:.2} of the bound");
}

/// Tenants that are new come without end, of which a few wait at every time. One that was served much before they came is
/// served again within the bound, which counts the tenants that are there at one time.
#[test]
fn fair_lets_no_tenant_starve_of_new_ones() {
    let (num_waiting, max_num_seqs) = (3, 1);
    let mut bench = bench(max_num_seqs, 64, Box::new(Fair::default()));
    let heavy = Load { num_prompt_tokens: 20, num_output_tokens: 100, ..SHORT };
    add(&mut bench, heavy, 0);
    while bench.ended().is_empty() {
        bench.step();
    }
    let light = |tenant| Load { num_prompt_tokens: 20, num_output_tokens: 20, tenant, ..SHORT };
    let num_active = u64::from(num_waiting + 1 + max_num_seqs);
    let bound = num_active * u64::from(max_num_seqs + 1) * cost(heavy);
    let (mut tenant, mut served, mut again) = (1, 0, None);
    while served <= bound {
        while bench.scheduler().stats().num_waiting < num_waiting as usize {
            add(&mut bench, light(tenant), tenant);
            tenant += 1;
        }
        let again = *again.get_or_insert_with(|| add(&mut bench, light(0), 1 << 40));
        let Some(plan) = bench.step() else { continue };
        if plan.rows.iter().any(|row| row.seq == again) {
            return;
        }
        let new = plan.rows.iter().filter(|row| row.kind == RowKind::New).count() as u64;
        served += 10 * 20 * new + 20 * plan.rows.iter().filter(|row| row.samples).count() as u64;
    }
    panic!("{tenant} new tenants went first, {served} was served: the bound is {bound}");
}

/// A request that has not ended.
struct FairRequest {
    tenant: u64,
    /// What it will still be charged.
    left: u64,
    /// What was left of its tenant's when it came.
    ahead: u64,
    /// What all had been charged then.
    served_before: u64,
}

/// The prompt's length, of one that may have ended with the step.
fn bench_prompt(bench: &Simulation, seq: SeqId) -> u32 {
    let running = bench.scheduler().seq(seq).map(|seq| seq.num_prompt_tokens());
    let ended = bench.ended().iter().rev().find(|ended| ended.sequence.id == seq);
    running.or(ended.map(|ended| ended.sequence.num_prompt_tokens)).expect("it was just planned")
}

/// Requests that wait ahead of the one in question, at all times.
const NUM_AHEAD: usize = 40;

/// 10,000 steps of a load that the policy likes better, as much as the device can serve and `NUM_AHEAD` more. Returns
/// for how many steps a request waited that came after 100 of them.
fn wait_under_load(policy: Box<dyn SchedulerPolicy>, liked: impl Fn(u64) -> Load, poor: Load) -> u64 {
    let mut bench = bench(4, 64, policy);
    let (mut patient, mut seed) = (None, 0);
    while bench.num_steps() < 10_000 {
        while bench.scheduler().stats().num_waiting < NUM_AHEAD {
            seed += 1;
            add(&mut bench, liked(seed), seed);
        }
        if bench.num_steps() == 100 {
            patient = Some(add(&mut bench, poor, 0));
        }
        bench.step();
    }
    let patient = patient.expect("it came in after 100 steps");
    let ended = bench.ended().iter().find(|ended| ended.sequence.id == patient);
    let seq = &ended.expect("it has started, and ended").sequence;
    let wait = seq.first_admitted.expect("it has run").since(seq.arrival);
    (wait.as_nanos() / STEP.as_nanos()) as u64
}

/// The bounds: that of the issue, and the one that the policies document, worked out for this load: what waits at
/// `ageing` runs one after the other.
#[track_caller]
fn check_wait(policy: Box<dyn SchedulerPolicy>, ageing: Duration, liked: impl Fn(u64) -> Load, poor: Load) {
    let name = policy.name().to_owned();
    let ageing = (ageing.as_nanos() / STEP.as_nanos()) as u64;
    let fcfs = wait_under_load(Box::new(Fcfs), &liked, poor);
    let wait = wait_under_load(policy, &liked, poor);
    println!("{name}: {wait} steps, fcfs {fcfs}, ageing {ageing}");
    assert!(fcfs > 0 && wait <= 2 * fcfs + ageing, "{name}: {wait} steps, fcfs {fcfs}, ageing {ageing}");
    let steps_of_one = u64::from(liked(1).num_prompt_tokens + liked(1).num_output_tokens);
    assert!(wait <= ageing + (NUM_AHEAD as u64 + 4) * steps_of_one);
}

const LONG_AGEING: Duration = Duration::from_millis(2000);

#[test]
fn a_bad_priority_starts_in_time() {
    let poor = Load { priority: 50, ..SHORT };
    check_wait(Box::new(Priority::new(LONG_AGEING)), LONG_AGEING, |_| Load { priority: -50, ..SHORT }, poor);
}

#[test]
fn a_long_prompt_starts_in_time() {
    let poor = Load { num_prompt_tokens: 900, ..SHORT };
    check_wait(Box::new(ShortestFirst::new(LONG_AGEING)), LONG_AGEING, |_| SHORT, poor);
}

#[test]
fn an_uncached_prompt_starts_in_time() {
    let liked = |_| Load { prefix: Some(1), ..SHORT };
    check_wait(Box::new(PrefixAware::new(LONG_AGEING)), LONG_AGEING, liked, SHORT);
}

#[test]
fn a_prompt_of_another_bucket_starts_in_time() {
    let poor = Load { num_prompt_tokens: 200, ..SHORT };
    check_wait(Box::new(LengthBucket::new(LONG_AGEING)), LONG_AGEING, |_| SHORT, poor);
}

#[test]
fn a_small_tenant_starts_in_time() {
    let poor = Load { tenant: 9, ..SHORT };
    check_wait(Box::new(Fair::default()), Duration::ZERO, |_| Load { tenant: 1, ..SHORT }, poor);
    // Names cost nothing: a crowd of tenants with a request each is no better than one tenant.
    let poor = Load { tenant: u64::MAX, ..SHORT };
    check_wait(Box::new(Fair::default()), Duration::ZERO, |seed| Load { tenant: seed, ..SHORT }, poor);
}

#[test]
fn without_ageing_the_worst_priority_waits_while_better_ones_come() {
    let mut bench = bench(2, 64, Box::new(Priority::strict()));
    for seed in 0..4 {
        add(&mut bench, SHORT, seed);
    }
    let poor = add(&mut bench, Load { priority: 1, ..SHORT }, 4);
    for seed in 5..3000 {
        add(&mut bench, SHORT, seed);
        bench.step();
    }
    assert_eq!(bench.scheduler().seq(poor).map(|seq| seq.served_tokens()), Some(0));
}

/// Two tenants that always wait get the same service, though one has four times as much to ask for, and one whose
/// prompts are cached gets more of them.
#[test]
fn fair_shares_the_device() {
    let num_ended = |prefix: Option<u64>| {
        let mut bench = bench(4, 64, Box::new(Fair::default()));
        let loads = [
            Load { num_prompt_tokens: 40, ..SHORT },
            Load { num_prompt_tokens: 40, tenant: 1, prefix, ..SHORT },
        ];
        let (mut of_tenant, mut num_ended) = (Vec::new(), [0, 0]);
        while bench.num_steps() < 2000 {
            for (tenant, load) in loads.into_iter().enumerate() {
                while of_tenant.iter().filter(|of| **of == tenant).count()
                    < num_ended[tenant] + [40, 10][tenant]
                {
                    let seq = add(&mut bench, load, of_tenant.len() as u64);
                    assert_eq!(seq.0, of_tenant.len() as u64);
                    of_tenant.push(tenant);
                }
            }
            bench.step();
            let ended_of = |tenant| {
                bench.ended().iter().filter(|ended| of_tenant[ended.sequence.id.0 as usize] == tenant).count()
            };
            num_ended = [ended_of(0), ended_of(1)];
        }
        num_ended.map(|num_ended| num_ended as f64)
    };
    let [many, few] = num_ended(None);
    assert!((many / few - 1.0).abs() < 0.1, "{many} and {few}");
    let [many, few] = num_ended(Some(1));
    assert!(few > 1.05 * many, "{many} and {few} with cached beginnings");
}

#[test]
fn in_guaranteed_mode_nobody_gives_way() {
    let policies = PolicyRegistry::default();
    let mut num_preemptions = 0;
    for name in policies.names() {
        for mode in [CapacityMode::MaxUtilization, CapacityMode::Guaranteed] {
            let mut cache = KvCacheConfig::new(24, 16);
            cache.watermark = 0.0;
            let scheduler = SchedulerConfig { capacity_mode: mode, ..SchedulerConfig::new(300) };
            let config = SimulationConfig { scheduler, cache, max_open_steps: 2 };
            let mut bench = Simulation::new(config, policies.build(name).unwrap());
            let mut rng = Rng::new(7);
            for seed in 0..60 {
                let load = Load {
                    num_prompt_tokens: rng.range(20..100),
                    num_output_tokens: rng.range(1..150),
                    prefix: rng.choose(&[None, Some(1)]),
                    ..SHORT
                };
                add(&mut bench, load, seed);
                bench.step();
            }
            bench.run(20_000);
            let given_way = bench.scheduler().stats().num_preemptions;
            match mode {
                CapacityMode::Guaranteed => assert_eq!(given_way, 0, "{name}"),
                _ => num_preemptions += given_way,
            }
        }
    }
    assert!(num_preemptions > 20, "the load is more than the pool holds: {num_preemptions}");
}

/// A fork counts with all that it may ever take, and the copy of the block that it shares in part.
#[test]
fn in_guaranteed_mode_a_fork_must_fit_to_its_end() {
    // The parent ends with 5 blocks, of which a child shares 1 and has 4 of its own; a copy of the block that is shared
    // in part is set aside for the parent, too, though the last to write there needs none.
    for (num_blocks, num_forks) in [(8, 0), (9, 1), (13, 1), (14, 2)] {
        let mut cache = KvCacheConfig::new(num_blocks, 16);
        cache.watermark = 0.0;
        let scheduler =
            SchedulerConfig { capacity_mode: CapacityMode::Guaranteed, ..SchedulerConfig::new(300) };
        let mut bench =
            Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, Box::new(Fcfs));
        let parent = add(&mut bench, Load { num_prompt_tokens: 24, num_output_tokens: 57, ..SHORT }, 1);
        bench.step();
        let forks = [2, 3].map(|seed| bench.fork(parent, 24, seed));
        assert_eq!(
            forks.iter().filter(|fork| fork.is_ok()).count(),
            num_forks,
            "{num_blocks} blocks: {forks:?}"
        );
        assert!(
            forks.iter().flat_map(|fork| fork.err()).all(|error| matches!(error, ForkError::NoBlocks(_)))
        );
        bench.run(200);
        assert_eq!((bench.scheduler().stats().num_preemptions, bench.ended().len()), (0, num_forks + 1));
    }
}

/// Forked at once, the last to write into the shared block needs no copy: 13 blocks are 5 + 2 * 4.
#[test]
fn forks_at_once_all_run_or_none_does() {
    for (num_blocks, max_num_seqs, num_forks) in [(12, 8, 0), (13, 8, 2), (40, 2, 0), (40, 3, 2)] {
        let mut cache = KvCacheConfig::new(num_blocks, 16);
        cache.watermark = 0.0;
        let capacity_mode = CapacityMode::Guaranteed;
        let scheduler = SchedulerConfig { capacity_mode, max_num_seqs, ..SchedulerConfig::new(300) };
        let mut bench =
            Simulation::new(SimulationConfig { scheduler, cache, max_open_steps: 1 }, Box::new(Fcfs));
        let parent = add(&mut bench, Load { num_prompt_tokens: 24, num_output_tokens: 57, ..SHORT }, 1);
        bench.step();
        let before = bench.scheduler().cache().usage();
        let forks = bench.fork_many(parent, 24, &[2, 3]);
        assert_eq!(forks.as_ref().map_or(0, Vec::len), num_forks, "{num_blocks} blocks: {forks:?}");
        let running = bench.scheduler().stats().num_running;
        assert_eq!(running, 1 + num_forks, "a refusal leaves nothing half done");
        assert_eq!(bench.scheduler().cache().usage(), before, "a fork takes no block before it writes");
        let copies = (0..60).filter_map(|_| bench.step()).map(|plan| plan.copies.len()).sum::<usize>();
        assert_eq!(copies, num_forks, "one copy a branch, when it is written");
        bench.run(200);
        assert_eq!((bench.scheduler().stats().num_preemptions, bench.ended().len()), (0, num_forks + 1));
    }
}

#[test]
fn no_more_prompts_are_computed_in_part_than_allowed() {
    for (limit, expected) in [(None, 3), (Some(2), 2), (Some(1), 1)] {
        let mut cache = KvCacheConfig::new(512, 16);
        cache.watermark = 0.0;
        let scheduler = SchedulerConfig {
            max_num_batched_tokens: 300,
            max_prefill_chunk: Some(100),
            max_num_partial_prefills: limit,
            ..SchedulerConfig::new(4096)
        };
        let config = SimulationConfig { scheduler, cache, max_open_steps: 1 };
        let mut bench = Simulation::new(config, Box::new(Fcfs));
        for seed in 0..6 {
            add(&mut bench, Load { num_prompt_tokens: 950, ..SHORT }, seed);
        }
        let mut most = 0;
        while bench.scheduler().has_unfinished() {
            let Some(plan) = bench.step() else { continue };
            let partial = plan.rows.iter().filter(|row| !row.samples);
            most = most.max(partial.count());
        }
        assert_eq!(most, expected, "limit {limit:?}");
        assert_eq!(bench.ended().len(), 6);
    }
}
