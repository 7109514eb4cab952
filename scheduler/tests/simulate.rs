//! Runs in virtual time.

use std::time::Duration;

use quire_scheduler::simulate::{Report, Setup, simulate};
use quire_scheduler::trace::Trace;
use quire_scheduler::{KvCacheConfig, PolicyRegistry, SchedulerConfig};

fn setup(num_blocks: u32) -> Setup {
    let limits =
        SchedulerConfig { max_num_seqs: 8, max_num_batched_tokens: 256, ..SchedulerConfig::new(1024) };
    Setup::new(limits, KvCacheConfig::new(num_blocks, 16))
}

fn trace(text: &str) -> Trace {
    Trace::parse_csv(text).expect("the test's trace is one")
}

fn run(trace: &Trace, setup: &Setup, policy: &str) -> Report {
    let policy = PolicyRegistry::default().build(policy).expect("it ships");
    simulate(trace, &trace.arrival_times(None), setup, policy).expect("the test's setup is usable").report
}

/// Requests of many lengths, one every five milliseconds, of two tenants.
fn mixed() -> Trace {
    let line = |i: u32| {
        format!(
            "{},{},{},{}\n",
            f64::from(i) * 5e-3,
            1 + i * 37 % 400,
            1 + i * 53 % 90,
            ["a", "b"][i as usize % 2]
        )
    };
    trace(&format!("arrival_s,prompt_tokens,output_tokens,tenant\n{}", (0..80).map(line).collect::<String>()))
}

#[test]
fn the_same_input_gives_the_same_run_and_every_request_ends_under_every_policy() {
    let trace = mixed();
    for policy in PolicyRegistry::default().names() {
        let report = run(&trace, &setup(60), policy);
        assert_eq!((report.num_finished, report.num_refused), (80, 0), "{policy}");
        let output: u64 = trace.requests.iter().map(|request| u64::from(request.output_tokens)).sum();
        assert_eq!(report.output_tokens, output, "{policy}");
        assert!(report.num_preemptions > 0, "{policy}: the pool is small enough to preempt");
        assert_eq!(report, run(&trace, &setup(60), policy), "{policy}");
        assert_eq!(report.tenants.len(), 2);
    }
}

#[test]
fn one_request_takes_the_sum_of_its_steps() {
    let trace = trace("arrival_s,prompt_tokens,output_tokens\n1.0,100,3\n");
    let mut setup = setup(60);
    setup.cost.step_us = 1000.0;
    setup.cost.prefill_token_us = 10.0;
    setup.cost.decode_us = 100.0;
    (setup.cost.prefill_pair_us, setup.cost.context_token_us) = (0.0, 1.0);
    let report = run(&trace, &setup, "fcfs");
    // Two decodes read 100 and 101 tokens of context.
    let expected = Duration::from_micros(1_000_000 + 2000 + 1100 + 100 + 1100 + 101);
    assert!((report.duration_s - expected.as_secs_f64()).abs() < 1e-9, "{}", report.duration_s);
    assert!((report.ttft_ms.max - 2.0).abs() < 1e-6);
    assert!((report.tpot_ms.max - 1.2005).abs() < 1e-6);
}

#[test]
fn shared_prefixes_are_found_and_tenants_told_apart() {
    let rows: String = (0..20).map(|i| format!("{i},160,2,system,128\n")).collect();
    let trace = trace(&format!("arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n{rows}"));
    let report = run(&trace, &setup(60), "fcfs");
    let expected = 19.0 * 128.0 / (20.0 * 160.0);
    assert!((report.prefix_hit_rate - expected).abs() < 1e-9, "{}", report.prefix_hit_rate);
}

#[test]
fn what_could_never_run_is_counted_as_refused() {
    let trace = trace("arrival_s,prompt_tokens,output_tokens\n0,2000,1\n0,900,5\n0,10,5\n");
    let report = run(&trace, &setup(20), "fcfs");
    assert_eq!((report.num_refused, report.num_finished), (2, 1));
}

#[test]
fn an_engine_that_does_not_know_output_lengths_stops_at_them_all_the_same() {
    let trace = mixed();
    let known = run(&trace, &setup(60), "fcfs");
    let unknown = run(&trace, &Setup { max_output_tokens: Some(500), ..setup(60) }, "fcfs");
    assert_eq!(known.output_tokens, unknown.output_tokens);
    assert_eq!(unknown.num_finished, 80);
}

#[test]
fn shorter_work_first_lowers_the_mean_wait() {
    let trace = mixed();
    let mean = |policy| run(&trace, &setup(200), policy).ttft_ms.mean;
    assert!(mean("shortest-first") < mean("fcfs"));
}
