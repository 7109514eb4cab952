//! Runs in virtual time.

use std::time::Duration;

use quire_scheduler::simulate::{Report, Setup, SimulateError, simulate};
use quire_scheduler::trace::Trace;
use quire_scheduler::{KvCacheConfig, PolicyRegistry, Preemption, SchedulerConfig};

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
    simulate(trace, &trace.arrival_times(None).unwrap(), setup, policy)
        .expect("the test's setup is usable")
        .report
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
fn a_timeline_shows_when_there_was_nothing_to_do() {
    let trace = trace("arrival_s,prompt_tokens,output_tokens\n0,100,3\n60,100,3\n");
    let policy = PolicyRegistry::default().build("fcfs").unwrap();
    let run = simulate(&trace, &trace.arrival_times(None).unwrap(), &setup(60), policy).unwrap();
    let pause = run.timeline.points.windows(2).find(|pair| pair[1].time_s - pair[0].time_s > 50.0).unwrap();
    assert_eq!((pause[0].num_running, pause[0].live_blocks, pause[1].num_running), (0, 0, 1));
    let last = run.timeline.points.last().unwrap();
    assert_eq!((last.time_s, last.num_running), (run.report.duration_s, 0), "it ends with the run");
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
fn what_could_never_run_is_refused_with_a_reason() {
    let trace = trace("arrival_s,prompt_tokens,output_tokens\n0,10,5\n0,2000,1\n0,900,5\n0,1100,1\n");
    let report = run(&trace, &setup(20), "fcfs");
    assert_eq!((report.num_refused, report.num_finished), (3, 1));
    let told: Vec<_> = report.refused.iter().map(|kind| (kind.num_requests, kind.first_request)).collect();
    assert_eq!(told, [(2, 1), (1, 2)]);
    assert!(report.refused[0].reason.contains("2000 tokens"), "{report}");
    assert!(
        report.to_string().contains("refused       1, the first is request 2: the prompt of 900 tokens"),
        "{report}"
    );
    let nothing_asked = run(&trace, &Setup { max_output_tokens: Some(0), ..setup(20) }, "fcfs");
    assert!(nothing_asked.to_string().contains("max_output_tokens is 0"), "{nothing_asked}");
}

#[test]
fn outputs_that_do_not_fit_are_told_with_what_cuts_them() {
    let trace = trace("arrival_s,prompt_tokens,output_tokens\n0,10,300\n1,10,20\n2,20,300\n");
    let check = |setup: &Setup, output_tokens, text: &str| {
        let report = run(&trace, setup, "fcfs");
        assert_eq!((report.num_finished, report.num_cut), (3, 2), "{report}");
        let missing: u64 = report.cut.iter().map(|cut| cut.num_tokens).sum();
        assert_eq!((report.output_tokens, missing), (output_tokens, 620 - output_tokens));
        assert!(report.to_string().contains(text), "{report}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cut"][0]["num_requests"], 2, "{json}");
    };
    let mut short = setup(60);
    short.scheduler.max_model_len = 256;
    let fits = "cut short     2 outputs, by 118 tokens, the first is request 0: 300 output tokens, 246 fit: max_model_len = 256";
    check(&short, 246 + 20 + 236, fits);
    check(&setup(10), 150 + 20 + 140, "300 output tokens, 150 fit: the pool of 160 tokens");
    check(
        &Setup { max_output_tokens: Some(20), ..setup(60) },
        60,
        "300 output tokens, 20 fit: max_tokens = 20",
    );
    let all = run(&trace, &setup(60), "fcfs");
    assert!(all.num_cut == 0 && !all.to_string().contains("cut short"), "{all}");
}

#[test]
fn every_tenant_is_counted_and_the_text_says_how_many_it_leaves_out() {
    let rows: String = (0..66).map(|i| format!("{i},10,2,t{i}\n")).collect();
    let trace = trace(&format!("arrival_s,prompt_tokens,output_tokens,tenant\n{rows}"));
    let report = run(&trace, &setup(60), "fair");
    assert_eq!(report.tenants.len(), 66);
    assert!(report.to_string().contains("tenants       2 more, all of them in JSON"), "{report}");
}

#[test]
fn steps_that_take_longer_than_time_is_counted_are_refused() {
    let (trace, mut setup) = (mixed(), setup(60));
    let result = |setup: &Setup| {
        let policy = PolicyRegistry::default().build("fcfs").unwrap();
        simulate(&trace, &trace.arrival_times(None).unwrap(), setup, policy)
    };
    for step_us in [1e14, 1e300] {
        setup.cost.step_us = step_us;
        let error = result(&setup).unwrap_err();
        assert!(matches!(error, SimulateError::TooLong { .. }), "{error}");
    }
    setup.cost.step_us = 1e9;
    assert!(result(&setup).is_ok());
}

#[test]
fn a_pool_beyond_all_memory_is_refused() {
    let trace = mixed();
    let policy = PolicyRegistry::default().build("fcfs").unwrap();
    let refused = simulate(&trace, &trace.arrival_times(None).unwrap(), &setup(500_000_000), policy);
    assert!(refused.unwrap_err().to_string().starts_with("num_blocks is 500000000, expected at most"));
}

#[test]
fn tenants_share_no_prefix_and_who_has_none_is_told_apart() {
    let rows: String = (0..20).map(|i| format!("{i},160,2,system,128,{}\n", ["a", "", "b"][i % 3])).collect();
    let trace = trace(&format!("arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens,tenant\n{rows}"));
    let report = run(&trace, &setup(60), "fair");
    let names: Vec<_> = report.tenants.iter().map(|tenant| (&*tenant.name, tenant.num_finished)).collect();
    assert_eq!(names, [("a", 7), ("(none)", 7), ("b", 6)]);
    let expected = 17.0 * 128.0 / (20.0 * 160.0);
    assert!((report.prefix_hit_rate - expected).abs() < 1e-9, "{}", report.prefix_hit_rate);
}

#[test]
fn priorities_and_swap_are_simulated() {
    let rows: String = (0..12).map(|i| format!("0,200,40,{}\n", 12 - i)).collect();
    let trace = trace(&format!("arrival_s,prompt_tokens,output_tokens,priority\n{rows}"));
    let urgent_last = run(&trace, &setup(30), "fcfs").decisions;
    assert_ne!(run(&trace, &setup(30), "priority").decisions, urgent_last);
    let swapping = |preemption, num_swap_blocks| {
        let mut setup = setup(27);
        (setup.scheduler.preemption, setup.cache.num_swap_blocks) = (preemption, num_swap_blocks);
        run(&trace, &setup, "fcfs")
    };
    let recompute = swapping(Preemption::Recompute, 100);
    assert!(recompute.num_preemptions > 0, "{recompute}");
    assert_eq!(swapping(Preemption::Swap, 0).decisions, recompute.decisions, "there is nowhere to swap to");
    let swap = swapping(Preemption::Swap, 100);
    assert_ne!(swap.decisions, recompute.decisions);
    // To move a block takes 18 us there and 18 back, to compute its tokens 334: the quicker way is taken.
    assert_eq!(swapping(Preemption::Auto, 100).decisions, swap.decisions);
}

#[test]
fn an_engine_that_does_not_know_output_lengths_stops_at_them_all_the_same() {
    let trace = mixed();
    let known = run(&trace, &setup(60), "fcfs");
    let unknown = run(&trace, &Setup { max_output_tokens: Some(500), ..setup(60) }, "fcfs");
    assert_eq!(known.output_tokens, unknown.output_tokens);
    assert_eq!(unknown.num_finished, 80);
}

/// Over a link that is quick, and over one that is slow, `auto` does what is done in less time: by swap in the one case, by
/// recompute in the other.
#[test]
fn auto_gives_way_in_the_way_that_is_quicker_on_either_link() {
    let trace = mixed();
    let run = |swapped_block_us: f64, preemption| {
        let mut setup = setup(60);
        setup.scheduler.preemption = preemption;
        (setup.cache.num_swap_blocks, setup.cache.groups[0].block_bytes) = (200, 1 << 20);
        setup.cache.enable_prefix_caching = false;
        (setup.cost.prefill_token_us, setup.cost.swapped_block_us) = (100.0, swapped_block_us);
        run(&trace, &setup, "fcfs")
    };
    // A block of 16 tokens is computed in 1.6 ms. It goes there and back: 0.8 ms is where both cost the same.
    for (swapped_block_us, swaps) in [(20.0, true), (400.0, true), (4000.0, false), (20_000.0, false)] {
        let ways = [Preemption::Swap, Preemption::Recompute, Preemption::Auto];
        let [swap, recompute, auto] = ways.map(|preemption| run(swapped_block_us, preemption));
        let [swap_s, recompute_s, auto_s] = [&swap, &recompute, &auto].map(|report| report.duration_s);
        println!(
            "{swapped_block_us} µs a block: swap {swap_s:.3} s, recompute {recompute_s:.3} s, auto {auto_s:.3} s"
        );
        assert!(swap.num_swaps > 5 && recompute.num_preemptions > 5 && recompute.num_swaps == 0);
        assert_eq!(auto.num_swaps > 0, swaps, "{swapped_block_us} µs");
        assert_eq!(swap_s < recompute_s, swaps, "{swapped_block_us} µs: {swap_s} s, {recompute_s} s");
        assert!(auto_s <= swap_s.min(recompute_s) * 1.001, "{auto_s} s");
    }
}

#[test]
fn shorter_work_first_lowers_the_mean_wait() {
    let trace = mixed();
    let mean = |policy| run(&trace, &setup(200), policy).ttft_ms.mean;
    assert!(mean("shortest-first") < mean("fcfs"));
}
