//! A test bench for policies, one's own included: the real scheduler and the real cache, a fake device, virtual time,
//! and one seed.
//!
//! [`check_policy`] runs a policy through random scenarios: pools of a few blocks, prompts too long for them, shared
//! prefixes, forks, aborts at every point, plain and run-ahead loops. After each step the books of blocks must
//! balance and the budgets be kept, every sequence must end within a bound, and its tokens must equal those of a lone
//! run: the fake device keeps for every slot what was computed there, so that a block handed to the wrong sequence, or
//! a copy made too late, changes the text. The same calls must bring the same decisions, from a policy that was saved and
//! restored as well, and nobody may be overtaken without end. A failure prints the seed.
//!
//! ```
//! use quire_scheduler::{Fcfs, testing::check_policy};
//!
//! check_policy(|_seed| Box::new(Fcfs), 0..20);
//! ```
//!
//! [`Simulation`] is the same bench for a load of one's own.

mod chaos;
mod device;
mod overtaking;
mod rng;
mod scenario;
mod simulation;
mod watchdog;

use std::ops::Range;

use crate::policy::SchedulerPolicy;
use crate::testing::overtaking::check_overtaking;
use crate::testing::watchdog::Watchdog;

pub use chaos::ChaosPolicy;
pub use rng::Rng;
pub use scenario::Scenario;
pub use simulation::{Coverage, Ended, Simulation, SimulationConfig};

/// Runs a policy, made anew for each run, through one random scenario a seed, twice: the second time must bring the same
/// decisions, though a policy that can be saved is made anew from what it saved every now and then. A policy is also held
/// to its [`max_overtaking`](SchedulerPolicy::max_overtaking), under load that never ends. `make` is to make equal
/// policies of equal seeds.
///
/// A scenario that does not end within a minute, as under a policy that loops for ever, is told on standard error with its
/// seed.
///
/// # Panics
/// If an invariant breaks, a sequence does not end or waits too long, or decisions differ, after printing the seed and the
/// scenario.
pub fn check_policy(make: impl Fn(u64) -> Box<dyn SchedulerPolicy>, seeds: Range<u64>) {
    let watchdog = Watchdog::start();
    for seed in seeds.clone() {
        watchdog.begin(seed);
        check_scenario(&make, seed);
    }
    if let Some(seed) = { seeds }.next() {
        watchdog.begin(seed);
        check_overtaking(&|| make(seed));
    }
}

/// As [`check_policy`], with seeds from `first_seed` on until so many operations have been done: requests added, aborted
/// and forked, failures of the device, and steps planned, run and committed. Returns how many scenarios that took.
///
/// # Panics
/// As there.
pub fn check_policy_for(
    make: impl Fn(u64) -> Box<dyn SchedulerPolicy>,
    first_seed: u64,
    num_operations: u64,
) -> u64 {
    let watchdog = Watchdog::start();
    let (mut num_done, mut seed) = (0, first_seed);
    while num_done < num_operations {
        watchdog.begin(seed);
        num_done += check_scenario(&make, seed);
        seed = seed.wrapping_add(1);
    }
    watchdog.begin(first_seed);
    check_overtaking(&|| make(first_seed));
    seed.wrapping_sub(first_seed)
}

/// How often a policy is made anew from its state: in the steps 1, 2, 4, ...
const NUM_RENEWALS: usize = 10;

/// Runs a scenario twice, and returns how many operations that were.
fn check_scenario(make: &impl Fn(u64) -> Box<dyn SchedulerPolicy>, seed: u64) -> u64 {
    let scenario = Scenario::from_seed(seed);
    let note = NoteOnPanic(&scenario);
    let first = scenario.run(make(seed));
    let fresh = (0..NUM_RENEWALS).map(|_| make(seed)).collect();
    let second = scenario.run_renewed(make(seed), fresh);
    if let Some(step) = first.parting(&second) {
        match first.parting(&scenario.run(make(seed))) {
            Some(step) => panic!("the same calls bring other decisions, from step {step} on"),
            None => panic!("a policy that was saved and restored decides otherwise, from step {step} on"),
        }
    }
    drop(note);
    first.num_operations() + second.num_operations()
}

struct NoteOnPanic<'a>(&'a Scenario);

impl Drop for NoteOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("broken with seed {}: {:#?}", self.0.seed, self.0);
        }
    }
}
