//! The flight recorder and the replay of what it kept.

use std::time::Duration;

use quire_scheduler::cost::fit;
use quire_scheduler::record::{RecordedScheduler, Recording, RecordingError};
use quire_scheduler::simulate::{Point, Setup, simulate};
use quire_scheduler::testing::Rng;
use quire_scheduler::{
    Fcfs, FinishReason, HoldReason, KvCacheConfig, KvCacheManager, NewSequence, PolicyRegistry, Rank, Rates,
    Scheduler, SchedulerConfig, SchedulerPolicy, SeqId, SequenceResult, SequenceView, StepPlan, Time,
};

/// A recorded scheduler under a load by chance: shared prefixes, forks, aborts, stops, run-ahead, a failure of the device.
struct Load {
    scheduler: RecordedScheduler,
    rng: Rng,
    /// Somebody comes in one step of so many.
    one_in: u32,
    now: u64,
    open: Vec<StepPlan>,
    alive: Vec<SeqId>,
    rng_of_holds: Rng,
    holds: Vec<(SeqId, HoldReason)>,
    num_releases: u32,
}

impl Load {
    fn new(policy: &str, seed: u64) -> Self {
        let limits =
            SchedulerConfig { max_num_seqs: 6, max_num_batched_tokens: 64, ..SchedulerConfig::new(200) };
        // Odd seeds swap, when it is quicker.
        let num_swap_blocks = if seed % 2 == 1 { 30 } else { 0 };
        let mut cache = KvCacheConfig { num_swap_blocks, ..KvCacheConfig::new(24, 8) };
        cache.groups[0].block_bytes = 1000;
        let policy = PolicyRegistry::default().build(policy).unwrap();
        let cache = KvCacheManager::new(cache).unwrap();
        let mut scheduler = RecordedScheduler::new(Scheduler::new(limits, policy, cache).unwrap());
        scheduler.set_rates(Rates { swap_bytes_per_s: 1e6, prefill_tokens_per_s: 3e3 });
        Self {
            scheduler,
            rng: Rng::new(seed),
            one_in: 3,
            now: 0,
            open: Vec::new(),
            alive: Vec::new(),
            rng_of_holds: Rng::new(seed ^ 3),
            holds: Vec::new(),
            num_releases: 0,
        }
    }

    fn run(mut self, num_requests: u32) -> RecordedScheduler {
        self.go_on(num_requests);
        self.scheduler
    }

    fn go_on(&mut self, num_requests: u32) {
        let mut num_left = num_requests;
        while num_left > 0 || self.scheduler.view().has_unfinished() || !self.open.is_empty() {
            self.now += u64::from(self.rng.range(1..2_000_000));
            if num_left > 0 && self.rng.one_in(self.one_in) {
                num_left -= 1;
                self.add();
            }
            self.disturb();
            let plan = self.scheduler.schedule(Time::from_nanos(self.now)).unwrap();
            let is_idle = plan.is_none();
            self.open.extend(plan);
            if !self.open.is_empty() && (is_idle || self.open.len() > 1) {
                self.commit();
            }
        }
    }

    fn add(&mut self) {
        let (group, len) = (self.rng.range(0..3), self.rng.range(1..120));
        let prompt =
            (0..len).map(|position| if position < 40 { group } else { self.rng.range(0..9) }).collect();
        let mut new = NewSequence::new(prompt, self.rng.range(1..60), Time::from_nanos(self.now));
        new.priority = self.rng.range(0..3) as i32 - 1;
        new.tenant.0 = u64::from(group);
        self.alive.extend(self.scheduler.add(new).ok());
    }

    fn disturb(&mut self) {
        if self.rng.one_in(40) && !self.alive.is_empty() {
            let seq = self.rng.choose(&self.alive);
            self.scheduler.abort(seq);
        }
        if self.rng.one_in(20) && !self.alive.is_empty() {
            let seq = self.rng.choose(&self.alive);
            let num_tokens = self.scheduler.view().seq(seq).map_or(0, |seq| seq.num_tokens());
            let num_children = self.rng.range(1..3);
            let children = self.scheduler.fork_many(seq, num_tokens, num_children);
            self.alive.extend(children.into_iter().flatten());
        }
        self.hold();
        if self.rng.one_in(300) {
            self.scheduler.reset_prefix_cache();
        }
        if self.rng.one_in(300) {
            self.scheduler.fail_open_steps();
            self.open.clear();
        }
    }

    fn hold(&mut self) {
        let rng = &mut self.rng_of_holds;
        if rng.one_in(20) && !self.alive.is_empty() {
            let hold = (rng.choose(&self.alive), rng.choose(&[HoldReason::Grammar, HoldReason::Adapter]));
            self.holds.extend(self.scheduler.hold(hold.0, hold.1).is_ok().then_some(hold));
        }
        if rng.one_in(10)
            && let Some((seq, reason)) = self.holds.pop()
        {
            self.num_releases += u32::from(self.scheduler.release(seq, reason));
        }
    }

    fn commit(&mut self) {
        let plan = self.open.remove(0);
        let transfers: Vec<_> = plan.transfers.iter().map(|transfer| transfer.id).collect();
        self.scheduler.finish_transfers(&transfers).unwrap();
        let sampled = plan.rows.iter().filter(|row| row.samples);
        let current: Vec<_> =
            sampled.filter(|row| self.scheduler.view().is_current(row.seq, row.epoch)).collect();
        let tokens: Vec<u32> = current.iter().map(|_| self.rng.range(0..9)).collect();
        let results = current.iter().zip(&tokens).map(|(row, token)| {
            let stops = self.rng.one_in(60);
            let tokens = if stops && *token == 0 { &[] } else { std::slice::from_ref(token) };
            let finish = stops.then_some(FinishReason::Stop);
            SequenceResult { seq: row.seq, epoch: row.epoch, tokens, finish }
        });
        let results: Vec<_> = results.collect();
        // A device with a cost of its own, so that there is something to fit.
        let time = 300 + 20 * u64::from(plan.num_tokens) + 5 * plan.rows.len() as u64;
        self.now += time * 1000;
        self.scheduler.note_device_time(Duration::from_micros(time));
        self.scheduler.commit(plan.step, &results, Time::from_nanos(self.now)).unwrap();
    }
}

fn record(policy: &str, seed: u64) -> (Recording, RecordedScheduler) {
    let scheduler = Load::new(policy, seed).run(60);
    let bytes = scheduler.recorder().recording().to_bytes();
    (Recording::from_bytes(&bytes).unwrap(), scheduler)
}

#[test]
fn a_replay_makes_every_decision_again_under_every_policy() {
    let policies = PolicyRegistry::default();
    let (mut num_preemptions, mut num_swaps) = (0, 0);
    for policy in policies.names() {
        for seed in 0..20 {
            let (recording, scheduler) = record(policy, seed);
            let replayed = recording.replay(recording.policy(&policies).unwrap());
            let replayed = replayed.unwrap_or_else(|error| panic!("{policy}, seed {seed}: {error}"));
            assert_eq!(replayed.digest, scheduler.digest(), "{policy}, seed {seed}");
            assert_eq!(replayed.stats, scheduler.view().stats(), "{policy}, seed {seed}");
            num_preemptions += replayed.stats.num_preemptions;
            num_swaps += replayed.stats.num_swaps;
        }
    }
    assert!(num_preemptions > 100, "{num_preemptions}: the pool is small enough to preempt");
    assert!(num_swaps > 20, "{num_swaps} of them moved blocks");
}

#[test]
fn a_replay_under_another_policy_is_seen_to_diverge() {
    let (recording, _) = record("fcfs", 1);
    let other = PolicyRegistry::default().build("shortest-first").unwrap();
    assert!(matches!(recording.replay(other), Err(RecordingError::Diverged { .. })));
}

#[test]
fn a_torn_file_and_one_of_another_version_are_told_apart() {
    let bytes = record("fcfs", 2).1.recorder().recording().to_bytes();
    assert_eq!(Recording::from_bytes(b"{}"), Err(RecordingError::NotARecording));
    for len in 8..bytes.len() {
        let torn = Recording::from_bytes(&bytes[..len]);
        assert!(matches!(torn, Err(RecordingError::Torn { .. })), "{len} bytes: {torn:?}");
    }
    let mut newer = bytes.clone();
    newer[8] += 1;
    let error = Recording::from_bytes(&newer).unwrap_err().to_string();
    assert_eq!(error, "the recording is of format version 6, this program reads version 5");
    let mut flipped = bytes.clone();
    let middle = bytes.len() / 2;
    flipped[middle] ^= 1;
    let error = Recording::from_bytes(&flipped).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}

#[test]
fn sequences_in_place_of_forks_are_no_requests() {
    let mut load = Load::new("fcfs", 1);
    let new = || NewSequence::new(vec![5; 20], 2, Time::ZERO);
    let first = load.scheduler.add(new()).unwrap();
    load.scheduler.add_sibling(new()).unwrap();
    load.alive.push(first);
    let plan = load.scheduler.schedule(Time::ZERO).unwrap().unwrap();
    load.open.push(plan);
    load.commit();
    load.scheduler.fork(first, 20).unwrap();
    load.scheduler.add(new()).unwrap();
    while load.scheduler.view().has_unfinished() {
        load.open.extend(load.scheduler.schedule(Time::from_millis(9)).unwrap());
        load.commit();
    }
    let recording = load.scheduler.recorder().recording();
    let recording = Recording::from_bytes(&recording.to_bytes()).unwrap();
    let summary = recording.summary().unwrap();
    assert_eq!((summary.num_requests, summary.num_sequences, summary.num_finished), (2, 4, 4));
    assert!(
        summary.to_string().contains("requests    2\nsequences   4 added, 4 finished, 0 aborted"),
        "{summary}"
    );
    let (trace, _) = recording.trace().unwrap();
    assert_eq!(trace.requests.len(), 2, "each once");
    let replayed = recording.replay(Box::new(Fcfs)).unwrap();
    assert_eq!(replayed.digest, load.scheduler.digest());
}

#[test]
fn holds_and_releases_are_made_again() {
    let policies = PolicyRegistry::default();
    let mut num_releases = 0;
    for policy in policies.names() {
        let mut load = Load::new(policy, 5);
        load.go_on(60);
        num_releases += load.num_releases;
        let recording = load.scheduler.recorder().recording();
        let replayed = recording.replay(recording.policy(&policies).unwrap()).unwrap();
        assert_eq!(replayed.digest, load.scheduler.digest());
    }
    assert!(num_releases > 30, "{num_releases}");
}

/// A load that fills a ring of one chunk of 256 KiB, and the one that is being filled, more than once.
fn wrapped(policy: &str, seed: u64) -> RecordedScheduler {
    let mut load = Load::new(policy, seed);
    load.one_in = 12;
    load.scheduler.recorder().set_max_bytes(300 << 10);
    load.run(4000)
}

#[test]
fn a_ring_that_has_wrapped_is_replayed_from_its_oldest_checkpoint() {
    let policies = PolicyRegistry::default();
    for (policy, seed) in policies.names().zip(1..) {
        let scheduler = wrapped(policy, seed);
        let bytes = scheduler.recorder().recording().to_bytes();
        let recording = Recording::from_bytes(&bytes).unwrap();
        assert!(recording.dropped_bytes() > 0, "{} bytes", recording.num_bytes());
        let mut first = None;
        let replayed = recording.replay_with(recording.policy(&policies).unwrap(), |plan, _| {
            first = first.or(Some(plan.step.0));
        });
        let replayed = replayed.unwrap_or_else(|error| panic!("{policy}, seed {seed}: {error}"));
        assert_eq!(replayed.digest, scheduler.digest(), "{policy}, seed {seed}");
        assert_eq!(replayed.stats, scheduler.view().stats(), "{policy}, seed {seed}");
        assert_eq!(first, Some(replayed.first_step), "{policy}, seed {seed}");
        assert!(replayed.first_step > 1 && replayed.num_steps > 500, "{replayed:?}");
    }
}

/// No checkpoints without the policy's state.
struct Unsaved;

impl SchedulerPolicy for Unsaved {
    fn name(&self) -> &str {
        "fcfs"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }
}

#[test]
fn a_recording_without_its_beginning_says_so_and_still_shows_its_steps() {
    let cache = KvCacheManager::new(KvCacheConfig::new(24, 8)).unwrap();
    let limits = SchedulerConfig { max_num_seqs: 6, max_num_batched_tokens: 64, ..SchedulerConfig::new(200) };
    let mut load = Load::new("fcfs", 3);
    load.one_in = 12;
    load.scheduler = RecordedScheduler::new(Scheduler::new(limits, Box::new(Unsaved), cache).unwrap());
    load.scheduler.recorder().set_max_bytes(300 << 10);
    let recording = load.run(4000).recorder().recording();
    let error = recording.replay(Box::new(Fcfs)).unwrap_err();
    assert!(matches!(error, RecordingError::NoBeginning { .. }), "{error}");
    let steps = recording.steps().unwrap();
    assert!(steps.len() > 100 && steps[0].step > 1);
    assert!(recording.trace().unwrap().0.requests.len() > 10);
}

#[test]
fn times_can_be_fitted_and_the_load_simulated() {
    let (recording, _) = record("fcfs", 4);
    let (samples, host_us) = recording.samples().unwrap();
    let report = fit(&samples, host_us, "test").unwrap();
    assert!(report.r_squared > 0.9, "{report:?}");
    let summary = recording.summary().unwrap();
    assert!(samples.len() as u64 <= summary.num_steps && samples.len() > 100, "{summary:?}");
    let (trace, arrivals) = recording.trace().unwrap();
    assert!((20..=60).contains(&trace.requests.len()), "{}", trace.requests.len());
    let setup = Setup {
        cost: report.model,
        ..Setup::new(recording.scheduler_config().clone(), recording.cache_config())
    };
    let run = simulate(&trace, &arrivals, &setup, Box::new(Fcfs)).unwrap();
    assert_eq!(run.report.num_finished, trace.requests.len() as u64);
    assert!(run.report.prefix_hit_rate > 0.05, "shared prompts are still shared");
}

#[test]
fn a_course_shows_when_there_was_nothing_to_do() {
    for seed in 0..8 {
        let mut load = Load::new("fcfs", seed);
        load.go_on(2);
        load.now += 5_000_000_000;
        load.go_on(2);
        let points = load.scheduler.recorder().recording().timeline().unwrap().points;
        let pause = points.windows(2).find(|pair| pair[1].time_s - pair[0].time_s > 4.0).unwrap();
        let Point { num_running, num_waiting, live_blocks, .. } = pause[0];
        assert_eq!((num_running, num_waiting, live_blocks), (0, 0, 0), "{seed}");
        assert!(pause[1].num_running > 0, "{seed}");
    }
}

#[test]
fn a_recording_takes_few_bytes_and_holds_no_tokens() {
    let cache = KvCacheManager::new(KvCacheConfig::new(4096, 16)).unwrap();
    let mut scheduler =
        RecordedScheduler::new(Scheduler::new(SchedulerConfig::new(4096), Box::new(Fcfs), cache).unwrap());
    for seq in 0..32 {
        let prompt = (0..200).map(|position| 0x5eed_0000 + seq * 200 + position).collect();
        scheduler.add(NewSequence::new(prompt, 300, Time::ZERO)).unwrap();
    }
    let mut now = 0;
    while let Some(plan) = scheduler.schedule(Time::from_nanos(now)).unwrap() {
        now += 5_123_456;
        let sampled = plan.rows.iter().filter(|row| row.samples);
        let results = sampled.map(|row| SequenceResult {
            seq: row.seq,
            epoch: row.epoch,
            tokens: &[0x5eed_ffff],
            finish: None,
        });
        scheduler.note_device_time(Duration::from_micros(5000));
        let results: Vec<_> = results.collect();
        scheduler.commit(plan.step, &results, Time::from_nanos(now)).unwrap();
    }
    let recording = scheduler.recorder().recording();
    let num_tokens = 32 * 500;
    let per_token = recording.num_bytes() as f64 / f64::from(num_tokens);
    assert!(per_token < 1.5, "{per_token} bytes a token");
    let bytes = recording.to_bytes();
    assert!(!bytes.windows(4).any(|four| four == 0x5eed_ffff_u32.to_le_bytes()));
    assert!(!bytes.windows(2).any(|two| two == [0xed, 0x5e]), "no token of a prompt either");
}
