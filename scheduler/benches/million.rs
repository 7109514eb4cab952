//! A million requests of a chat law in simulation: how long that takes, and how much memory.
//!
//! `cargo bench -p quire-scheduler --bench million [-- TRACE REQUESTS RATE]`; without arguments a law of its own, log-normal
//! lengths with a mean of 164 prompt and 192 output tokens.

use std::time::Instant;

use quire_scheduler::simulate::{Setup, simulate};
use quire_scheduler::testing::Rng;
use quire_scheduler::trace::Trace;
use quire_scheduler::{Fcfs, KvCacheConfig, SchedulerConfig};

fn main() {
    // Cargo says `--bench` where it measures; a test run looks only whether it works.
    let is_measured = std::env::args().any(|arg| arg == "--bench");
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let law = args.first().map_or_else(built_in, |path| {
        Trace::parse(&std::fs::read_to_string(path).expect("the trace can be read")).expect("a trace")
    });
    let number =
        |place: usize, default: f64| args.get(place).map_or(default, |arg| arg.parse().expect("number"));
    let num_requests = number(1, if is_measured { 1e6 } else { 1e3 }) as usize;
    let trace = law.drawn(num_requests, 1);
    let setup = Setup::new(
        SchedulerConfig { max_num_seqs: 256, max_num_batched_tokens: 8192, ..SchedulerConfig::new(8192) },
        KvCacheConfig::new(119_127, 16),
    );
    let started = Instant::now();
    let arrivals = trace.arrival_times(Some(number(2, 70.0))).expect("a usual rate");
    let run = simulate(&trace, &arrivals, &setup, Box::new(Fcfs)).expect("the setup is usable");
    println!("{}", run.report);
    println!("{num_requests} requests in {:.1} s; {}", started.elapsed().as_secs_f64(), peak_memory());
}

fn built_in() -> Trace {
    let mut rng = Rng::new(3);
    let mut length = |mean: f64| {
        // The sum of twelve uniform numbers is close to normal.
        let normal: f64 = (0..12).map(|_| f64::from(rng.range(0..1_000_000)) / 1e6).sum::<f64>() - 6.0;
        ((mean * 0.6065 * normal.exp()) as u32).clamp(4, 2048)
    };
    let line =
        |_| format!("{{\"prompt_tokens\": {}, \"output_tokens\": {}}}\n", length(164.0), length(192.0));
    Trace::parse(&(0..1000).map(line).collect::<String>()).expect("a trace")
}

/// The most memory that this process has held, as Linux counts it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("peak memory unknown").to_owned()
}
