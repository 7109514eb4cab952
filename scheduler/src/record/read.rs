//! What a recording says without a replay: its steps, its course, its requests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::call::{Added, Call, Gauges};
use super::error::RecordingError;
use super::file::Recording;
use crate::cost::{StepSample, StepWork};
use crate::ids::{TenantId, Time};
use crate::simulate::{Point, Timeline};
use crate::trace::{Arrivals, Content, Trace, TraceRequest};

/// A step as it was recorded.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct RecordedStep {
    /// Its number.
    pub step: u64,
    /// When it was planned, in seconds since the recorder's beginning.
    pub planned_s: f64,
    /// When it was committed; `None` for one that was open at the end, or failed.
    pub committed_s: Option<f64>,
    /// What it computed.
    pub work: StepWork,
    /// How long the device worked on it, as far as it was measured.
    pub device_us: u64,
    /// From the end of the step before it, or from its own planning where nothing was open, to its end.
    pub cycle_us: f64,
    /// Sequences that ran.
    pub num_running: u32,
    /// Sequences that waited.
    pub num_waiting: u32,
    /// Sequences whose blocks were on the host.
    pub num_swapped: u32,
    /// Blocks held.
    pub live_blocks: u32,
    /// Whether all that had come before had ended when it was planned: nothing was left to do between the step before and
    /// an arrival.
    pub is_after_idle: bool,
}

/// A recording at a glance.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Requests that came.
    pub num_requests: u64,
    /// Their sequences: one each, and those that were forked, or queued in place of a fork.
    pub num_sequences: u64,
    /// Sequences that ended by themselves.
    pub num_finished: u64,
    /// Sequences that were given up.
    pub num_aborted: u64,
    /// Steps recorded.
    pub num_steps: u64,
    /// Tokens that they computed.
    pub num_tokens: u64,
    /// From the first call to the last, in seconds.
    pub duration_s: f64,
    /// The time in which steps were open, in seconds.
    pub busy_s: f64,
    /// The time that the device worked, in seconds.
    pub device_s: f64,
    /// Bytes of the recording.
    pub num_bytes: usize,
    /// Bytes at the beginning that were overwritten.
    pub dropped_bytes: u64,
    /// The digest of all decisions.
    pub decisions: String,
}

impl Recording {
    /// The recorded steps, in order.
    ///
    /// # Errors
    /// [`RecordingError::Torn`].
    pub fn steps(&self) -> Result<Vec<RecordedStep>, RecordingError> {
        let mut steps: Vec<RecordedStep> = Vec::new();
        let (mut next_commit, mut num_added) = (0, 0);
        let mut clock = Clock::default();
        let mut calls = self.calls();
        while let Some(call) = calls.next() {
            match call? {
                Call::Add(added) => {
                    clock.arrived(added.arrival, next_commit < steps.len());
                    num_added += 1;
                }
                Call::Schedule { now, planned: Some(planned) } => {
                    clock.planned(now);
                    let Gauges { num_running, num_waiting, .. } = planned.gauges;
                    let is_after_idle = next_commit == steps.len() && num_running + num_waiting <= num_added;
                    let step = step(calls.base().step, now, planned.work, planned.gauges);
                    steps.push(RecordedStep { is_after_idle, ..step });
                }
                Call::Commit(committed) if next_commit < steps.len() => {
                    num_added = 0;
                    let step = &mut steps[next_commit];
                    step.committed_s = Some(seconds(committed.now));
                    step.device_us = committed.device_us;
                    step.cycle_us = clock.committed(committed.now);
                    next_commit += 1;
                }
                Call::FailOpenSteps => next_commit = steps.len(),
                _ => {}
            }
        }
        Ok(steps)
    }

    /// The recorded steps with a measured time, and what the host added to a step on average, in microseconds: the busy
    /// time that is not the device's.
    ///
    /// # Errors
    /// [`RecordingError::Torn`].
    pub fn samples(&self) -> Result<(Vec<StepSample>, f64), RecordingError> {
        let steps = self.steps()?;
        let measured: Vec<_> =
            steps.iter().filter(|step| step.committed_s.is_some() && step.device_us > 0).collect();
        let host: f64 = measured.iter().map(|step| step.cycle_us - step.device_us as f64).sum();
        let samples =
            measured.iter().map(|step| StepSample { work: step.work, device_us: step.device_us as f64 });
        Ok((samples.collect(), (host / measured.len().max(1) as f64).max(0.0)))
    }

    /// The course of the run.
    ///
    /// # Errors
    /// [`RecordingError::Torn`].
    pub fn timeline(&self) -> Result<Timeline, RecordingError> {
        let mut timeline = Timeline::new(self.cache_config().num_blocks);
        let mut end_s = None;
        for step in self.steps()? {
            if let Some(end_s) = end_s.filter(|_| step.is_after_idle) {
                timeline.push_idle(end_s);
            }
            // A step that failed has no end.
            end_s = Some(step.committed_s.unwrap_or(step.planned_s));
            timeline.push(|| Point {
                time_s: step.planned_s,
                num_running: step.num_running,
                num_waiting: step.num_waiting,
                num_swapped: step.num_swapped,
                live_blocks: step.live_blocks,
                num_tokens: step.work.num_tokens() as u32,
            });
        }
        if let Some(end_s) = end_s {
            timeline.hold(end_s);
        }
        Ok(timeline)
    }

    /// Counts and times.
    ///
    /// # Errors
    /// [`RecordingError::Torn`].
    pub fn summary(&self) -> Result<Summary, RecordingError> {
        let steps = self.steps()?;
        let (mut num_requests, mut num_forked, mut num_finished, mut num_aborted) = (0, 0, 0, 0);
        for call in self.calls() {
            match call? {
                Call::Add(added) if added.is_sibling => num_forked += 1,
                Call::Add(_) => num_requests += 1,
                Call::Fork { num_children, .. } => num_forked += u64::from(num_children),
                Call::ForkWith { .. } => num_forked += 1,
                Call::Commit(committed) => num_finished += committed.finished.len() as u64,
                Call::Abort { .. } => num_aborted += 1,
                _ => {}
            }
        }
        let begin = steps.first().map_or(0.0, |step| step.planned_s);
        let end = steps.iter().rev().find_map(|step| step.committed_s).unwrap_or(begin);
        Ok(Summary {
            policy: self.policy_name().to_owned(),
            num_requests,
            num_sequences: num_requests + num_forked,
            num_finished,
            num_aborted,
            num_steps: steps.len() as u64,
            num_tokens: steps.iter().map(|step| step.work.num_tokens()).sum(),
            duration_s: end - begin,
            busy_s: steps.iter().map(|step| step.cycle_us).sum::<f64>() / 1e6,
            device_s: steps.iter().map(|step| step.device_us).sum::<u64>() as f64 / 1e6,
            num_bytes: self.num_bytes(),
            dropped_bytes: self.dropped_bytes(),
            decisions: format!("{:016x}", self.header.digest),
        })
    }

    /// The recorded load, for a simulation of something else: every request that came and ended by itself in the
    /// recording, with its arrival, as its first sequence alone. Which tokens were shared is kept, by the names of blocks.
    ///
    /// # Errors
    /// [`RecordingError::NoRequests`], [`RecordingError::Torn`].
    pub fn trace(&self) -> Result<(Trace, Vec<Time>), RecordingError> {
        let mut open: BTreeMap<u64, Added> = BTreeMap::new();
        let mut ended: Vec<(Added, u32)> = Vec::new();
        for call in self.calls() {
            match call? {
                Call::Add(added) if !added.is_sibling => drop(open.insert(added.seq, added)),
                Call::Commit(committed) => {
                    for (seq, name) in committed.hashes {
                        if let Some(added) = open.get_mut(&seq) {
                            added.hashes.push(name);
                        }
                    }
                    for (seq, num_output) in committed.finished {
                        ended.extend(open.remove(&seq).map(|added| (added, num_output)));
                    }
                }
                _ => {}
            }
        }
        ended.sort_by_key(|(added, _)| (added.arrival, added.seq));
        let Some(begin) = ended.first().map(|(added, _)| added.arrival) else {
            return Err(RecordingError::NoRequests);
        };
        let arrivals = ended.iter().map(|(added, _)| Time::from_nanos(added.arrival - begin)).collect();
        let block_size = self.cache_config().block_size.max(1);
        let requests = ended.into_iter().map(|(added, output)| request(added, output, begin, block_size));
        let trace = Trace { requests: requests.collect(), tenants: Vec::new(), arrivals: Arrivals::Seconds };
        Ok((trace, arrivals))
    }
}

/// When the step before ended.
#[derive(Default)]
struct Clock {
    last: u64,
    has_begun: bool,
    /// Nothing has happened since the last commit.
    is_after_commit: bool,
}

impl Clock {
    /// A request came. If nothing was open, the time before it may have been idle, and is nobody's.
    fn arrived(&mut self, at: u64, is_open: bool) {
        if !is_open && std::mem::take(&mut self.is_after_commit) {
            self.last = self.last.max(at);
        }
    }

    fn planned(&mut self, at: u64) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.last = at;
        }
        self.is_after_commit = false;
    }

    fn committed(&mut self, at: u64) -> f64 {
        let cycle_us = at.saturating_sub(self.last) as f64 / 1e3;
        (self.last, self.is_after_commit) = (at, true);
        cycle_us
    }
}

fn step(step: u64, now: u64, work: StepWork, gauges: Gauges) -> RecordedStep {
    let Gauges { num_running, num_waiting, num_swapped, live_blocks } = gauges;
    RecordedStep {
        step,
        planned_s: seconds(now),
        committed_s: None,
        work,
        device_us: 0,
        cycle_us: 0.0,
        num_running,
        num_waiting,
        num_swapped,
        live_blocks,
        is_after_idle: false,
    }
}

fn request(added: Added, output_tokens: u32, begin: u64, block_size: u32) -> TraceRequest {
    TraceRequest {
        arrival: seconds(added.arrival - begin),
        prompt_tokens: added.prompt_tokens,
        output_tokens: output_tokens.max(1),
        max_tokens: Some(added.max_output_tokens.max(output_tokens)),
        tenant: TenantId(added.tenant),
        priority: added.priority,
        content: Content::Blocks { names: Arc::from(added.hashes), block_size },
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy      {}", self.policy)?;
        writeln!(f, "requests    {}", self.num_requests)?;
        let Self { num_sequences, num_finished, num_aborted, .. } = self;
        writeln!(f, "sequences   {num_sequences} added, {num_finished} finished, {num_aborted} aborted")?;
        writeln!(f, "steps       {}, {} tokens", self.num_steps, self.num_tokens)?;
        writeln!(
            f,
            "time        {:.3} s, {:.3} s of it busy, {:.3} s on the device",
            self.duration_s, self.busy_s, self.device_s
        )?;
        let per_token = self.num_bytes as f64 / self.num_tokens.max(1) as f64;
        writeln!(f, "recording   {} bytes, {per_token:.1} a token", self.num_bytes)?;
        if self.dropped_bytes > 0 {
            writeln!(f, "overwritten {} bytes at the beginning", self.dropped_bytes)?;
        }
        writeln!(f, "decisions   {}", self.decisions)
    }
}
