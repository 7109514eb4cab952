//! Random scenarios.

use quire_kvcache::{HashKey, KvCacheConfig};

use crate::config::{CapacityMode, SchedulerConfig};
use crate::error::AddError;
use crate::hold::HoldReason;
use crate::ids::{SeqId, TenantId};
use crate::policy::SchedulerPolicy;
use crate::preemption::Preemption;
use crate::sequence::NewSequence;
use crate::testing::rng::Rng;
use crate::testing::simulation::{Simulation, SimulationConfig};

/// A random bench and load: all of it follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The bench: small pools, narrow budgets.
    pub config: SimulationConfig,
    /// Requests in the load; some are too long for the pool or the model.
    pub num_requests: u32,
    /// In one step of so many somebody is aborted.
    pub abort_one_in: u32,
    /// In one step of so many somebody is forked.
    pub fork_one_in: u32,
    /// One step in so many fails on the device, if any.
    pub fail_one_in: Option<u32>,
    /// In one step of so many somebody is held, if at all; in one of two of those that follow somebody is released.
    pub hold_one_in: Option<u32>,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let block_size = rng.choose(&[1, 2, 4, 8, 16]);
        let mut cache = KvCacheConfig::new(rng.range(2..40), block_size);
        cache.watermark = rng.choose(&[0.0, 0.01, 0.2]);
        cache.enable_prefix_caching = !rng.one_in(3);
        cache.hash_key = HashKey(rng.next_u64(), rng.next_u64());
        let mut scheduler = SchedulerConfig::new(rng.range(2..200));
        scheduler.max_num_seqs = rng.range(1..9);
        scheduler.max_num_batched_tokens = scheduler.max_num_seqs + rng.range(0..64);
        scheduler.max_prefill_chunk = rng.choose(&[None, Some(1), Some(7)]);
        if rng.one_in(4) {
            scheduler.enable_chunked_prefill = false;
            scheduler.max_prefill_chunk = None;
            scheduler.max_num_batched_tokens = scheduler.max_model_len + scheduler.max_num_seqs - 1;
        }
        // Numbers of their own, so that those above stay what they were for a seed.
        let mut rng_of_options = Rng::new(seed ^ 2);
        cache.num_swap_blocks = rng_of_options.choose(&[0, 0, 3, 30]);
        scheduler.preemption =
            rng_of_options.choose(&[Preemption::Swap, Preemption::Swap, Preemption::Recompute]);
        scheduler.capacity_mode = rng_of_options.choose(&[
            CapacityMode::MaxUtilization,
            CapacityMode::MaxUtilization,
            CapacityMode::Guaranteed,
        ]);
        scheduler.max_num_partial_prefills = rng_of_options.choose(&[None, None, Some(1), Some(2)]);
        let config = SimulationConfig { scheduler, cache, max_open_steps: rng.range(1..4) as usize };
        Self {
            seed,
            config,
            num_requests: rng.range(1..25),
            abort_one_in: rng.choose(&[5, 20, 1000]),
            fork_one_in: rng.choose(&[2, 10, 1000]),
            fail_one_in: rng.choose(&[None, None, Some(50)]),
            hold_one_in: rng_of_options.choose(&[None, Some(3), Some(20)]),
        }
    }

    /// Runs a policy through it, and returns the bench, idle again.
    ///
    /// # Panics
    /// If an invariant breaks or a sequence does not end in time.
    pub fn run(&self, policy: Box<dyn SchedulerPolicy>) -> Simulation {
        self.run_renewed(policy, Vec::new())
    }

    /// As [`run`](Self::run), with policies just built that take over in turn.
    pub(crate) fn run_renewed(
        &self,
        policy: Box<dyn SchedulerPolicy>,
        fresh: Vec<Box<dyn SchedulerPolicy>>,
    ) -> Simulation {
        let mut rng = Rng::new(self.seed ^ 1);
        let mut bench = Simulation::new(self.config.clone(), policy);
        bench.renew_policy_with(fresh);
        let mut num_left = self.num_requests;
        let mut added = Vec::new();
        let (mut holds, mut rng_of_holds) = (Vec::new(), Rng::new(self.seed ^ 3));
        let mut max_steps = 100;
        while num_left > 0 {
            if rng.one_in(2) {
                num_left -= 1;
                max_steps += self.add(&mut bench, &mut rng, &mut added);
            }
            max_steps += self.disturb(&mut bench, &mut rng, &mut added);
            self.hold(&mut bench, &mut rng_of_holds, &added, &mut holds);
            bench.step();
        }
        for (seq, reason) in holds {
            bench.release(seq, reason);
        }
        bench.run(max_steps);
        bench
    }

    /// Holds and releases.
    fn hold(
        &self,
        bench: &mut Simulation,
        rng: &mut Rng,
        added: &[SeqId],
        holds: &mut Vec<(SeqId, HoldReason)>,
    ) {
        let is_due = self.hold_one_in.is_some_and(|times| rng.one_in(times));
        if is_due && !added.is_empty() {
            let hold = (rng.choose(added), rng.choose(&[HoldReason::Grammar, HoldReason::Adapter]));
            if bench.hold(hold.0, hold.1) {
                holds.push(hold);
            }
        }
        if !holds.is_empty() && rng.one_in(2) {
            let (seq, reason) = holds.swap_remove(rng.range(0..holds.len() as u32) as usize);
            bench.release(seq, reason);
        }
    }

    /// Adds a request, and returns the steps it may take: the oldest computes at least a token whenever a policy has
    /// passed it over 32 times, and never starts over unless the device fails.
    fn add(&self, bench: &mut Simulation, rng: &mut Rng, added: &mut Vec<SeqId>) -> u64 {
        let prefix = Simulation::prompt(u64::from(rng.range(0..3)), rng.range(0..60));
        let rest = Simulation::prompt(rng.next_u64(), rng.range(0..60));
        let max_output_tokens = rng.choose(&[1, 2, 10, 60, u32::MAX]);
        let mut new = NewSequence::new([prefix, rest].concat(), max_output_tokens, bench.now());
        (new.priority, new.tenant) = (rng.range(0..3) as i32, TenantId(u64::from(rng.range(0..3))));
        let num_tokens = new.prompt.len() as u32;
        match bench.add(new, rng.next_u64(), rng.one_in(2)) {
            Ok(seq) => added.push(seq),
            Err(refusal) => return self.expect_refusal(num_tokens, &refusal),
        }
        40 * u64::from(self.config.scheduler.max_model_len)
    }

    /// Refusals name what was needed, and are right.
    fn expect_refusal(&self, num_tokens: u32, refusal: &AddError) -> u64 {
        let capacity = self.config.cache.capacity();
        match *refusal {
            AddError::EmptyPrompt => assert_eq!(num_tokens, 0),
            AddError::PromptTooLong { max_model_len, .. } => assert!(num_tokens >= max_model_len),
            AddError::NeverFits { need, have, .. } => {
                assert_eq!(need, capacity.blocks_for(num_tokens + 1));
                assert!(need > have && have == capacity.admissible_blocks());
            }
            AddError::NoOutput => panic!("every request asks for output"),
        }
        0
    }

    /// Aborts, forks and fails, and returns the steps that this may cost.
    fn disturb(&self, bench: &mut Simulation, rng: &mut Rng, added: &mut Vec<SeqId>) -> u64 {
        let cost = 40 * u64::from(self.config.scheduler.max_model_len);
        if self.fail_one_in.is_some_and(|times| rng.one_in(times)) {
            bench.fail_device();
            return cost * added.len() as u64;
        }
        added.retain(|seq| bench.scheduler().seq(*seq).is_some());
        if added.is_empty() {
            return 0;
        }
        let seq = rng.choose(added);
        if rng.one_in(self.abort_one_in) {
            bench.abort(seq);
        }
        let Some(num_tokens) = bench.scheduler().seq(seq).map(|seq| seq.num_tokens()) else { return 0 };
        if rng.one_in(self.fork_one_in) {
            let seeds: Vec<_> = (0..rng.range(1..4)).map(|_| rng.next_u64()).collect();
            let children = bench.fork_many(seq, num_tokens, &seeds).unwrap_or_default();
            added.extend(&children);
            return cost * children.len() as u64;
        }
        0
    }
}
