//! A test bench for policies, one's own included: the real scheduler and the real cache, a fake device, virtual time,
//! and one seed.
//!
//! [`check_policy`] runs a policy through random scenarios: pools of a few blocks, prompts too long for them, shared
//! prefixes, forks, aborts at every point, plain and run-ahead loops. After each step the books of blocks must
//! balance and the budgets be kept, every sequence must end within a bound, and its tokens must equal those of a lone
//! run: the fake device keeps for every slot what was computed there, so that a block handed to the wrong sequence, or
//! a copy made too late, changes the text. A failure prints the seed.
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
mod rng;
mod scenario;
mod simulation;

use std::ops::Range;

use crate::policy::SchedulerPolicy;

pub use chaos::ChaosPolicy;
pub use rng::Rng;
pub use scenario::Scenario;
pub use simulation::{Coverage, Ended, Simulation, SimulationConfig};

/// Runs a policy, made anew for each seed, through one random scenario a seed.
///
/// # Panics
/// If an invariant breaks or a sequence does not end, after printing the seed and the scenario.
pub fn check_policy(make: impl Fn(u64) -> Box<dyn SchedulerPolicy>, seeds: Range<u64>) {
    for seed in seeds {
        let scenario = Scenario::from_seed(seed);
        let note = NoteOnPanic(&scenario);
        scenario.run(make(seed));
        drop(note);
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
    let (mut num_done, mut seed) = (0, first_seed);
    while num_done < num_operations {
        let scenario = Scenario::from_seed(seed);
        let note = NoteOnPanic(&scenario);
        num_done += scenario.run(make(seed)).num_operations();
        drop(note);
        seed += 1;
    }
    seed - first_seed
}

struct NoteOnPanic<'a>(&'a Scenario);

impl Drop for NoteOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("broken with seed {}: {:#?}", self.0.seed, self.0);
        }
    }
}
