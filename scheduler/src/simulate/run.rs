//! The loop, in the order of an engine's calls.

use std::collections::VecDeque;

use quire_kvcache::{CacheSalt, KvCacheConfig, KvCacheManager};

use super::report::{Report, Tally};
use super::timeline::{Point, Timeline};
use super::track::Tracks;
use super::{Setup, SimulateError};
use crate::cost::StepWork;
use crate::error::AddError;
use crate::ids::{SeqId, Time};
use crate::plan::StepPlan;
use crate::policy::SchedulerPolicy;
use crate::result::SequenceResult;
use crate::scheduler::Scheduler;
use crate::sequence::{FinishReason, NewSequence};
use crate::trace::{Room, Trace, TraceRequest};

/// What came of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulated {
    /// Its numbers.
    pub report: Report,
    /// Its course.
    pub timeline: Timeline,
}

/// The last moment of a run, in seconds: 317 years. Below what the clock counts to, and later than any trace.
const MAX_END_S: f64 = 1e10;

/// Runs the requests of a trace, which come at `arrivals`, to their ends. What could never run is counted as refused, and
/// outputs that end early for want of room as cut.
///
/// # Errors
/// [`SimulateError`], where limits or pool cannot be used, or steps take longer than time is counted.
pub fn simulate(
    trace: &Trace,
    arrivals: &[Time],
    setup: &Setup,
    policy: Box<dyn SchedulerPolicy>,
) -> Result<Simulated, SimulateError> {
    let setup = &Setup { cache: with_block_bytes(setup.cache.clone()), ..setup.clone() };
    let cache = KvCacheManager::new(setup.cache.clone())?;
    let mut scheduler = Scheduler::new(setup.scheduler.clone(), policy, cache)?;
    setup.rates().into_iter().for_each(|rates| scheduler.set_rates(rates));
    let room = setup.room();
    let mut run = Run {
        timeline: Timeline::new(setup.cache.num_blocks),
        tally: Tally::new(trace, &room),
        room,
        trace,
        arrivals,
        setup,
        scheduler,
        now: Time::ZERO,
        device_free: Time::ZERO,
        next: 0,
        open: VecDeque::new(),
        tracks: Tracks::default(),
    };
    while run.step()? {}
    run.timeline.push_idle(run.now.as_nanos() as f64 / 1e9);
    let Run { tally, timeline, scheduler, now, .. } = run;
    Ok(Simulated { report: tally.finish(&scheduler, setup, now), timeline })
}

/// Where nobody said how large a block is, its size does not matter: what it takes to move one is known.
fn with_block_bytes(mut config: KvCacheConfig) -> KvCacheConfig {
    if config.block_bytes() == 0 {
        config.groups.iter_mut().for_each(|group| group.block_bytes = 1);
    }
    config
}

struct Run<'a> {
    trace: &'a Trace,
    arrivals: &'a [Time],
    setup: &'a Setup,
    room: Room,
    scheduler: Scheduler,
    now: Time,
    /// When the device has done all that was submitted.
    device_free: Time,
    /// The next request to come.
    next: usize,
    /// Steps submitted, with the time they end at.
    open: VecDeque<(StepPlan, Time)>,
    tracks: Tracks,
    tally: Tally,
    timeline: Timeline,
}

impl Run<'_> {
    /// Once around the loop; false at the end.
    fn step(&mut self) -> Result<bool, SimulateError> {
        self.take_requests();
        if !self.scheduler.has_unfinished() && self.open.is_empty() {
            let Some(arrival) = self.arrivals.get(self.next) else { return Ok(false) };
            self.timeline.push_idle(self.now.as_nanos() as f64 / 1e9);
            self.now = self.now.max(*arrival);
            return Ok(true);
        }
        let plan = self.scheduler.schedule(self.now)?;
        let is_idle = plan.is_none();
        if let Some(plan) = plan {
            self.submit(plan)?;
        }
        if self.open.len() >= self.setup.max_open_steps.max(1) || is_idle {
            self.collect()?;
        }
        Ok(true)
    }

    fn take_requests(&mut self) {
        while self.arrivals.get(self.next).is_some_and(|arrival| *arrival <= self.now) {
            let index = self.next;
            self.next += 1;
            let Some(request) = self.trace.requests.get(index) else { return };
            match self.add(index, request) {
                Ok(seq) => self.tracks.push(seq, index),
                Err(error) => self.tally.refuse(index, &error),
            }
        }
    }

    fn add(&mut self, index: usize, request: &TraceRequest) -> Result<SeqId, AddError> {
        // Before a prompt of that length is made up.
        self.room.check(request.prompt_tokens)?;
        let new = NewSequence::new(request.prompt(index), self.max_tokens(request), self.arrivals[index]);
        self.scheduler.add(NewSequence {
            tenant: request.tenant,
            priority: request.priority,
            // As in an engine, tenants share no cached blocks.
            salt: CacheSalt::from_low_bits(request.tenant.0),
            ..new
        })
    }

    /// What the request gives as its limit.
    fn max_tokens(&self, request: &TraceRequest) -> u32 {
        request.max_tokens.or(self.setup.max_output_tokens).unwrap_or(request.output_tokens)
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), SimulateError> {
        let work = StepWork::of(&plan);
        let step_time = self.setup.cost.step_time(&work);
        let end = self.device_free.max(self.now) + step_time;
        if end.as_nanos() as f64 / 1e9 > MAX_END_S {
            return Err(SimulateError::TooLong { step: plan.step.0, step_time });
        }
        self.device_free = end;
        self.tally.note_plan(&plan, &self.scheduler);
        let (now, scheduler) = (self.now, &self.scheduler);
        self.timeline.push(|| point(now, scheduler, work.num_tokens()));
        self.open.push_back((plan, end));
        Ok(())
    }

    fn collect(&mut self) -> Result<(), SimulateError> {
        let Some((plan, end)) = self.open.pop_front() else { return Ok(()) };
        self.now = self.now.max(end);
        let sampled = plan.rows.iter().filter(|row| row.samples);
        let current: Vec<_> = sampled.filter(|row| self.scheduler.is_current(row.seq, row.epoch)).collect();
        let tokens: Vec<_> = current.iter().map(|row| self.token(row.seq)).collect();
        let results: Vec<_> = current
            .iter()
            .zip(&tokens)
            .map(|(row, (token, finish))| SequenceResult {
                seq: row.seq,
                epoch: row.epoch,
                tokens: std::slice::from_ref(token),
                finish: *finish,
            })
            .collect();
        // A transfer takes its time from the step that it comes with.
        let transfers: Vec<_> = plan.transfers.iter().map(|transfer| transfer.id).collect();
        self.scheduler.finish_transfers(&transfers)?;
        let report = self.scheduler.commit(plan.step, &results)?;
        for (seq, num_tokens) in report.accepted {
            let track = self.tracks.get_mut(seq);
            track.num_output += num_tokens;
            track.first_token.get_or_insert(self.now);
        }
        for finished in report.finished {
            let track = self.tracks.end(finished.id);
            self.tally.finish_request(&finished, &track, self.now, self.trace);
        }
        Ok(())
    }

    /// The next token of a sequence, and whether it is its last.
    fn token(&self, seq: SeqId) -> (u32, Option<FinishReason>) {
        let track = self.tracks.get(seq);
        let request = &self.trace.requests[track.index];
        let token = request.token(track.index, request.prompt_tokens + track.num_output);
        let is_last =
            track.num_output + 1 >= request.output_tokens && self.max_tokens(request) > request.output_tokens;
        (token, is_last.then_some(FinishReason::Stop))
    }
}

fn point(now: Time, scheduler: &Scheduler, num_tokens: u64) -> Point {
    let stats = scheduler.stats();
    Point {
        time_s: now.as_nanos() as f64 / 1e9,
        num_running: stats.num_running as u32,
        num_waiting: stats.num_waiting as u32,
        num_swapped: stats.num_swapped as u32,
        live_blocks: stats.blocks.live,
        num_tokens: num_tokens as u32,
    }
}
