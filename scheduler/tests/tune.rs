//! A search for settings.

use quire_scheduler::PolicyRegistry;
use quire_scheduler::cost::CostModel;
use quire_scheduler::trace::Trace;
use quire_scheduler::tune::{Goal, Limit, Memory, Outcome, Tuner, presets};

#[test]
fn the_best_settings_are_within_the_goal_and_no_neighbour_is_better() {
    let line = |i: u32| {
        format!("{{\"prompt_tokens\": {}, \"output_tokens\": {}}}\n", 20 + i * 37 % 300, 5 + i * 53 % 60)
    };
    let law = Trace::parse(&(0..50).map(line).collect::<String>()).unwrap();
    let trace = law.drawn(60, 1);
    let policies = PolicyRegistry::default();
    let memory = Memory::of_pool(20_000);
    let goal = Goal { max_ttft_ms: 500.0, max_tpot_ms: 12.0 };
    let tuner = Tuner {
        trace: &trace,
        cost: CostModel::default(),
        memory,
        goal,
        policies: &policies,
        policy: "fcfs",
        min_seconds: 3.0,
    };
    let tuned = tuner.tune().unwrap();
    let best = &tuned.best;
    assert!(best.requests_per_s > 5.0, "{best:?}");
    assert!(best.ttft_p99_ms <= 500.0 && best.tpot_p99_ms <= 12.0, "{best:?}");
    for (name, other) in &tuned.alternatives {
        assert!(other.requests_per_s <= best.requests_per_s * 1.05, "{name}: {other:?}");
    }
    let longer: Vec<_> = tuned.alternatives.iter().filter(|(name, _)| *name == "max_model_len").collect();
    assert_eq!(longer.len(), 4, "more length than is asked for is tried, and changes nothing");
    assert!(longer.iter().all(|(_, other)| other.requests_per_s > 0.9 * best.requests_per_s), "{longer:?}");
    let worst =
        tuned.alternatives.iter().map(|(_, other)| other.requests_per_s).fold(f64::INFINITY, f64::min);
    assert!(worst < 0.9 * best.requests_per_s, "some setting matters: {worst} of {}", best.requests_per_s);
    let presets = presets(&tuned, &memory);
    assert!(
        presets[0].to_string().starts_with("--max-num-seqs ") && presets[1].settings.max_model_len >= 4096
    );
    let all = tuned.alternatives.iter().map(|(_, choice)| choice).chain([best]);
    assert!(all.map(|choice| choice.settings).all(|s| s.max_num_batched_tokens >= s.max_num_seqs));
}

#[test]
fn settings_that_leave_no_room_are_told_from_those_that_are_too_slow() {
    let trace = Trace::parse(&"{\"prompt_tokens\": 100, \"output_tokens\": 20}\n".repeat(20)).unwrap();
    let tuned = |max_ttft_ms| {
        let goal = Goal { max_ttft_ms, max_tpot_ms: 20.0 };
        let (policies, memory) = (PolicyRegistry::default(), Memory::of_pool(1000));
        let tuner = Tuner {
            trace: &trace,
            cost: CostModel::default(),
            memory,
            goal,
            policies: &policies,
            policy: "fcfs",
            min_seconds: 3.0,
        };
        tuner.tune().unwrap()
    };
    let quick = tuned(500.0);
    assert_eq!(quick.best.outcome, Outcome::Serves);
    for (_, choice) in &quick.alternatives {
        let is_too_long = choice.settings.max_model_len > 1000;
        let expected = if is_too_long { Outcome::NoRoom } else { Outcome::Serves };
        assert_eq!(choice.outcome, expected, "{choice:?}");
    }
    assert!(quick.alternatives.iter().any(|(_, choice)| choice.outcome == Outcome::NoRoom));
    assert_eq!(tuned(0.001).best.outcome, Outcome::TooSlow);
}

#[test]
fn a_rate_that_lasts_for_as_long_as_a_short_trace_alone_is_none() {
    let law = Trace::parse(&"{\"prompt_tokens\": 200, \"output_tokens\": 50}\n".repeat(40)).unwrap();
    let tuned = |min_seconds| {
        let tuner = Tuner {
            trace: &law,
            cost: CostModel::default(),
            memory: Memory::of_pool(20_000),
            goal: Goal { max_ttft_ms: 1000.0, max_tpot_ms: 1000.0 },
            policies: &PolicyRegistry::default(),
            policy: "fcfs",
            min_seconds,
        };
        tuner.tune().unwrap().best
    };
    let (short, long) = (tuned(0.0), tuned(10.0));
    assert!(
        long.requests_per_s < 0.9 * short.requests_per_s,
        "{} {}",
        short.requests_per_s,
        long.requests_per_s
    );
    assert_eq!(long.limit, Some(Limit::Ttft), "{long:?}");
}
