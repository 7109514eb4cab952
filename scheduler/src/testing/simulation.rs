//! The bench: scheduler, fake device and a loop between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quire_kvcache::{BlockId, Direction, KvCacheConfig, KvCacheManager, StepId};

use crate::config::SchedulerConfig;
use crate::digest::PlanDigest;
use crate::error::{AddError, ForkError};
use crate::explain::{WaitClass, WaitReason};
use crate::hold::HoldReason;
use crate::ids::{Epoch, SeqId, Time};
use crate::observer::StepObserver;
use crate::plan::{InputToken, PlannedRow, RowKind, StepPlan};
use crate::policy::SchedulerPolicy;
use crate::preemption::Rates;
use crate::result::{CommitReport, SequenceResult};
use crate::scheduler::Scheduler;
use crate::sequence::{FinishReason, FinishedSequence, NewSequence, SeqStatus};
use crate::testing::device::{FakeDevice, VOCAB, digest, sample};

/// What a bench is made from.
#[derive(Clone, Debug)]
pub struct SimulationConfig {
    /// The limits of a step.
    pub scheduler: SchedulerConfig,
    /// The pool.
    pub cache: KvCacheConfig,
    /// Steps that may be open at once: 1 is the plain loop, 2 the run-ahead loop.
    pub max_open_steps: usize,
}

/// A sequence that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// What the scheduler handed back.
    pub sequence: FinishedSequence,
    /// The tokens delivered on the way, as the commits reported them.
    pub delivered: Vec<u32>,
    /// The `step` call it ended in.
    pub at: u64,
}

/// How often the bench has met what it is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Rows that came back after a preemption.
    pub num_resumed_rows: u64,
    /// Rows whose input was not read by the host when they were planned.
    pub num_unread_inputs: u64,
    /// Blocks copied before they were written.
    pub num_copies: u64,
    /// Blocks that went to the host.
    pub num_swapped_out: u64,
    /// Blocks that came back.
    pub num_swapped_in: u64,
    /// Plans that were there to wait for transfers.
    pub num_waits_for_transfers: u64,
    /// Rows whose results were dropped.
    pub num_dropped_rows: u64,
    /// `schedule` calls that found all work waiting for a commit.
    pub num_awaited_commits: u64,
    /// Holds that were released.
    pub num_releases: u64,
}

impl std::ops::AddAssign for Coverage {
    fn add_assign(&mut self, other: Self) {
        self.num_resumed_rows += other.num_resumed_rows;
        self.num_unread_inputs += other.num_unread_inputs;
        self.num_copies += other.num_copies;
        self.num_swapped_out += other.num_swapped_out;
        self.num_swapped_in += other.num_swapped_in;
        self.num_waits_for_transfers += other.num_waits_for_transfers;
        self.num_dropped_rows += other.num_dropped_rows;
        self.num_awaited_commits += other.num_awaited_commits;
        self.num_releases += other.num_releases;
    }
}

impl Coverage {
    fn of(plan: &StepPlan) -> Self {
        let count =
            |is_met: fn(&PlannedRow) -> bool| plan.rows.iter().filter(|row| is_met(row)).count() as u64;
        let blocks = |direction| {
            let transfers = plan.transfers.iter().filter(|transfer| transfer.direction == direction);
            transfers.map(|transfer| transfer.blocks.len() as u64).sum()
        };
        Self {
            num_resumed_rows: count(|row| row.kind == RowKind::Resumed),
            num_unread_inputs: count(|row| row.input != InputToken::Known),
            num_copies: plan.copies.len() as u64,
            num_swapped_out: blocks(Direction::Out),
            num_swapped_in: blocks(Direction::In),
            num_waits_for_transfers: u64::from(plan.rows.is_empty()),
            ..Self::default()
        }
    }
}

/// What the bench knows of a sequence, to foresee its text.
#[derive(Clone, Debug)]
struct Expected {
    seed: u64,
    num_given_tokens: usize,
    max_output_tokens: usize,
    stops: bool,
    delivered: Vec<u32>,
}

#[derive(Debug)]
struct InFlight {
    step: StepId,
    rows: Vec<(SeqId, Epoch, Option<u32>)>,
    /// Blocks that the step reads or writes.
    touched: BTreeSet<BlockId>,
}

/// A scheduler at work on a fake device.
///
/// # Panics
/// Every method panics where an invariant is broken.
pub struct Simulation {
    scheduler: Scheduler,
    device: FakeDevice,
    config: SimulationConfig,
    in_flight: VecDeque<InFlight>,
    expected: BTreeMap<SeqId, Expected>,
    ended: Vec<Ended>,
    num_steps: u64,
    num_operations: u64,
    coverage: Coverage,
    step_time: Duration,
    digest: PlanDigest,
    /// The digest of all decisions after each step.
    decisions: Vec<PlanDigest>,
    /// Policies just built that are to take over in turn.
    fresh: Vec<Box<dyn SchedulerPolicy>>,
}

/// The token that ends a sequence that heeds it.
const STOP: u32 = 0;

/// Virtual time of a step.
const STEP_TIME: Duration = Duration::from_millis(1);

impl Simulation {
    /// A bench without load. The configuration is the test's own, so that an unusable one is a failure of the test.
    pub fn new(config: SimulationConfig, policy: Box<dyn SchedulerPolicy>) -> Self {
        let cache =
            KvCacheManager::new(config.cache.clone()).expect("the test's cache configuration is usable");
        let scheduler = Scheduler::new(config.scheduler.clone(), policy, cache);
        Self {
            scheduler: scheduler.expect("the test's scheduler configuration is usable"),
            device: FakeDevice::new(
                config.cache.num_blocks,
                config.cache.block_size,
                config.cache.num_swap_blocks,
            ),
            in_flight: VecDeque::new(),
            expected: BTreeMap::new(),
            ended: Vec::new(),
            num_steps: 0,
            num_operations: 0,
            coverage: Coverage::default(),
            step_time: STEP_TIME,
            digest: PlanDigest::default(),
            decisions: Vec::new(),
            fresh: Vec::new(),
            config,
        }
    }

    /// A prompt that is a function of its seed.
    pub fn prompt(seed: u64, num_tokens: u32) -> Vec<u32> {
        let mut rng = crate::testing::Rng::new(seed);
        (0..num_tokens).map(|_| rng.range(1..VOCAB)).collect()
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        Time::ZERO + self.step_time * u32::try_from(self.num_steps).unwrap_or(u32::MAX)
    }

    /// Virtual time of a step, before the first.
    pub(crate) fn set_step_time(&mut self, step_time: Duration) {
        self.step_time = step_time;
    }

    /// In the steps 1, 2, 4 and so on the next of these policies, just built, takes over what the one at work saves.
    pub(crate) fn renew_policy_with(&mut self, fresh: Vec<Box<dyn SchedulerPolicy>>) {
        self.fresh = fresh;
    }

    /// The first step in which another run decided otherwise, if any.
    pub(crate) fn parting(&self, other: &Self) -> Option<usize> {
        let num_equal = self.decisions.iter().zip(&other.decisions).take_while(|(a, b)| a == b).count();
        let is_equal = self.decisions.len() == other.decisions.len() && self.decisions.len() == num_equal;
        if is_equal { None } else { Some(num_equal + 1) }
    }

    /// The scheduler, to tell it what was measured.
    pub fn set_rates(&mut self, rates: Rates) {
        self.scheduler.set_rates(rates);
    }

    /// Adds somebody who sees every decision from now on.
    pub fn add_observer(&mut self, observer: impl StepObserver + 'static) {
        self.scheduler.add_observer(observer);
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The sequences that have ended so far, in the order of their ends.
    pub fn ended(&self) -> &[Ended] {
        &self.ended
    }

    /// Calls of [`step`](Self::step) so far.
    pub fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// Operations so far: additions, aborts, forks, failures of the device, plans and commits.
    pub fn num_operations(&self) -> u64 {
        self.num_operations
    }

    /// How often the bench has met what it is there for.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Adds a sequence whose text depends on `seed`, and which ends early at a stop token if `stops`.
    ///
    /// # Errors
    /// As [`Scheduler::add`].
    pub fn add(&mut self, new: NewSequence, seed: u64, stops: bool) -> Result<SeqId, AddError> {
        let num_given_tokens = new.prompt.len();
        self.num_operations += 1;
        let id = self.scheduler.add(new)?;
        self.expect(id, seed, num_given_tokens, stops);
        Ok(id)
    }

    /// Forks a sequence.
    ///
    /// # Errors
    /// As [`Scheduler::fork`].
    pub fn fork(&mut self, parent: SeqId, num_tokens: u32, seed: u64) -> Result<SeqId, ForkError> {
        let children = self.fork_many(parent, num_tokens, &[seed])?;
        Ok(children[0])
    }

    /// Forks a sequence once for each seed, all at once.
    ///
    /// # Errors
    /// As [`Scheduler::fork_many`].
    pub fn fork_many(
        &mut self,
        parent: SeqId,
        num_tokens: u32,
        seeds: &[u64],
    ) -> Result<Vec<SeqId>, ForkError> {
        self.num_operations += 1;
        let children = self.scheduler.fork_many(parent, num_tokens, seeds.len() as u32)?;
        let stops = self.expected.get(&parent).is_some_and(|parent| parent.stops);
        for (&child, &seed) in children.iter().zip(seeds) {
            self.expect(child, seed, num_tokens as usize, stops);
        }
        Ok(children)
    }

    /// Aborts a sequence that may have ended.
    pub fn abort(&mut self, seq: SeqId) {
        self.num_operations += 1;
        let aborted = self.scheduler.abort(seq);
        self.end(aborted);
        self.check();
    }

    /// Holds a sequence that may not be waiting; whether it is held now.
    pub fn hold(&mut self, seq: SeqId, reason: HoldReason) -> bool {
        self.num_operations += 1;
        let is_held = self.scheduler.hold(seq, reason).is_ok();
        self.check();
        is_held
    }

    /// Releases a sequence; whether it was held.
    pub fn release(&mut self, seq: SeqId, reason: HoldReason) -> bool {
        self.num_operations += 1;
        let was_held = self.scheduler.release(seq, reason);
        self.coverage.num_releases += u64::from(was_held);
        self.check();
        was_held
    }

    /// Fails all open steps, as an error of the device does.
    pub fn fail_device(&mut self) {
        self.num_operations += 1;
        self.in_flight.clear();
        self.device.reset();
        let failed = self.scheduler.fail_open_steps();
        self.end(failed);
        self.check();
    }

    /// Once around the loop: plan and submit a step, then collect the oldest, if so many are open or there is nothing
    /// else to do. Returns the plan.
    pub fn step(&mut self) -> Option<StepPlan> {
        self.num_steps += 1;
        self.num_operations += 1;
        self.renew_policy();
        let plan = self.scheduler.schedule(self.now()).expect("a step with work plans something");
        plan.iter().for_each(|plan| self.digest.add(plan));
        self.decisions.push(self.digest);
        match &plan {
            Some(plan) => self.submit(plan),
            None => self.coverage.num_awaited_commits += u64::from(self.scheduler.has_work()),
        }
        self.check();
        if plan.is_none() || self.in_flight.len() >= self.config.max_open_steps {
            self.collect();
            self.check();
        }
        plan
    }

    /// Steps until nothing is left, and returns how many calls of [`step`](Self::step) that took.
    pub fn run(&mut self, max_steps: u64) -> u64 {
        let start = self.num_steps;
        while self.scheduler.has_unfinished() || !self.in_flight.is_empty() {
            assert!(self.num_steps - start < max_steps, "all sequences end within {max_steps} steps");
            self.step();
        }
        let usage = self.scheduler.cache().usage();
        assert_eq!((usage.live, usage.free + usage.cached), (0, usage.total), "all blocks come back");
        let swap = self.scheduler.cache().swap_usage();
        assert_eq!((swap.free, swap.num_transfers), (swap.total, 0), "all blocks of the host come back");
        self.num_steps - start
    }

    fn renew_policy(&mut self) {
        let is_due = self.num_steps.is_power_of_two();
        let Some(mut fresh) = self.fresh.pop_if(|_| is_due) else { return };
        let Some(state) = self.scheduler.policy.save() else { return };
        assert!(fresh.restore(&state), "a policy restores what it saved");
        assert_eq!(fresh.save(), Some(state), "what was restored is saved as it was");
        self.scheduler.policy = fresh;
    }

    fn expect(&mut self, id: SeqId, seed: u64, num_given_tokens: usize, stops: bool) {
        let seq = self.scheduler.seq(id).expect("the sequence was just added");
        let forked_output = num_given_tokens - seq.num_prompt_tokens() as usize;
        let max_output_tokens = seq.max_output_tokens() as usize - forked_output;
        let delivered = Vec::new();
        self.expected.insert(id, Expected { seed, num_given_tokens, max_output_tokens, stops, delivered });
    }

    fn submit(&mut self, plan: &StepPlan) {
        let config = &self.config.scheduler;
        assert!(plan.num_tokens <= config.max_num_batched_tokens, "the token budget is kept");
        assert!(plan.rows.len() <= config.max_num_seqs as usize, "the limit of sequences is kept");
        assert!(self.scheduler.stats().num_running <= config.max_num_seqs as usize);
        let held = |row: &PlannedRow| self.scheduler.seq(row.seq).and_then(|seq| seq.held_for());
        assert!(plan.rows.iter().all(|row| held(row).is_none()), "what is held does not run");
        self.coverage += Coverage::of(plan);
        for block in self.fresh_blocks(plan) {
            let touched = self.in_flight.iter().any(|open| open.touched.contains(&block));
            assert!(!touched, "block {block} is handed out while an open step touches it");
        }
        let (scheduler, expected) = (&self.scheduler, &self.expected);
        let added = |seq: SeqId| (scheduler.tokens(seq).to_vec(), expected[&seq].seed);
        let sampled = self.device.execute(plan, added);
        let rows = plan.rows.iter().zip(sampled).map(|(row, token)| (row.seq, row.epoch, token)).collect();
        let tables = plan.rows.iter().flat_map(|row| self.scheduler.block_table(row.seq));
        let touched = tables.copied().chain(plan.copies.iter().map(|copy| copy.src)).collect();
        self.in_flight.push_back(InFlight { step: plan.step, rows, touched });
    }

    /// Blocks that a plan hands out without content: neither prefix hits nor shares of a fork.
    fn fresh_blocks(&self, plan: &StepPlan) -> Vec<BlockId> {
        let block_size = self.config.cache.block_size;
        let fresh_of = |row: &PlannedRow| {
            let is_new = row.kind != RowKind::Continuing;
            let num_given = if is_new { row.start.div_ceil(block_size) as usize } else { 0 };
            row.new_blocks[num_given..].to_vec()
        };
        let copies = plan.copies.iter().map(|copy| copy.dst);
        plan.rows.iter().flat_map(fresh_of).chain(copies).collect()
    }

    fn collect(&mut self) {
        let Some(InFlight { step, rows, .. }) = self.in_flight.pop_front() else { return };
        self.num_operations += 1;
        self.finish_transfers(step, rows.is_empty());
        // Results of earlier epochs are dropped whether they are left out or not; odd steps leave them out.
        let is_wanted = |seq, epoch| step.0 % 2 == 0 || self.scheduler.is_current(seq, epoch);
        let sampled = rows.iter().filter(|(seq, epoch, _)| is_wanted(*seq, *epoch));
        let tokens: Vec<_> =
            sampled.filter_map(|(seq, epoch, token)| Some((*seq, *epoch, [(*token)?]))).collect();
        let results: Vec<_> = tokens.iter().map(|sampled| self.result(sampled)).collect();
        let report = self.scheduler.commit(step, &results).expect("results belong to the step");
        self.deliver(&report, &results.iter().map(|r| (r.seq, r.tokens[0])).collect());
        self.coverage.num_dropped_rows += u64::from(report.num_dropped);
        self.end(report.finished);
    }

    /// Transfers end in their order, some steps after they were started; a step without rows ends them all.
    fn finish_transfers(&mut self, step: StepId, all: bool) {
        let mut rng = crate::testing::Rng::new(step.0);
        while all || rng.one_in(2) {
            let Some(transfer) = self.device.finish_transfer(step) else { break };
            self.scheduler.finish_transfers(&[transfer]).expect("the transfer is open");
        }
    }

    fn result<'a>(&self, (seq, epoch, tokens): &'a (SeqId, Epoch, [u32; 1])) -> SequenceResult<'a> {
        let stops = self.expected.get(seq).is_some_and(|expected| expected.stops);
        let finish = (stops && tokens[0] == STOP).then_some(FinishReason::Stop);
        SequenceResult { seq: *seq, epoch: *epoch, tokens, finish }
    }

    fn deliver(&mut self, report: &CommitReport, tokens: &BTreeMap<SeqId, u32>) {
        for (seq, num_tokens) in &report.accepted {
            assert_eq!(*num_tokens, 1, "a row without drafts brings one token");
            let expected = self.expected.get_mut(seq).expect("an accepted sequence was added");
            expected.delivered.push(tokens[seq]);
        }
    }

    fn end(&mut self, finished: impl IntoIterator<Item = FinishedSequence>) {
        for sequence in finished {
            let expected = self.expected.remove(&sequence.id).expect("a sequence ends once");
            expected.check(&sequence);
            self.ended.push(Ended { sequence, delivered: expected.delivered, at: self.num_steps });
        }
    }

    /// The counts by reason are kept as sequences come and go; here they are counted.
    fn check_reasons(&self) {
        let waiting: Vec<_> =
            self.expected.keys().filter_map(|id| self.scheduler.explain(*id, self.now())).collect();
        let waiting =
            waiting.iter().filter(|why| matches!(why.status, SeqStatus::Waiting | SeqStatus::Swapped));
        let mut counted = std::collections::BTreeMap::<WaitClass, usize>::new();
        for why in waiting {
            let class = match why.waits_for {
                Some(WaitReason::Refused(refusal)) => WaitClass::from(refusal),
                Some(WaitReason::Held(reason)) => WaitClass::from(reason),
                _ => WaitClass::Queue,
            };
            *counted.entry(class).or_default() += 1;
        }
        let kept = self.scheduler.waiting_by_reason();
        let (num_counted, num_kept): (usize, usize) =
            (counted.values().sum(), kept.iter().map(|(_, num)| num).sum());
        assert_eq!(num_counted, num_kept, "each that waits has one reason");
        // One that was refused and has been overtaken since is explained by who is in front.
        for (class, kept) in kept.into_iter().filter(|(class, _)| *class != WaitClass::Queue) {
            assert!(
                counted.get(&class).is_none_or(|counted| *counted <= kept),
                "{class:?}: {counted:?}, {kept} kept"
            );
        }
    }

    fn check(&self) {
        self.scheduler.check().expect("the books of blocks balance");
        self.check_reasons();
    }
}

impl Expected {
    /// The text is that of a lone run; of one that was cut short, its beginning.
    fn check(&self, sequence: &FinishedSequence) {
        let (given, output) = sequence.tokens.split_at(self.num_given_tokens);
        let (lone, reason) = self.lone(given);
        assert!(lone.starts_with(output), "the text of sequence {} is that of its lone run", sequence.id);
        assert_eq!(output, self.delivered, "each token of sequence {} is delivered once", sequence.id);
        if !matches!(sequence.reason, FinishReason::Abort | FinishReason::Error) {
            assert_eq!(
                (lone.len(), reason),
                (output.len(), sequence.reason),
                "sequence {} ends",
                sequence.id
            );
        }
    }

    fn lone(&self, given: &[u32]) -> (Vec<u32>, FinishReason) {
        let mut values = given.iter().fold(0, |values, token| digest(values, *token));
        let mut output = Vec::new();
        while output.len() < self.max_output_tokens {
            let token = sample(values, self.seed);
            output.push(token);
            if self.stops && token == STOP {
                return (output, FinishReason::Stop);
            }
            values = digest(values, token);
        }
        (output, FinishReason::Length)
    }
}
