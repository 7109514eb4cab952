//! A scheduler whose calls are recorded.

use std::time::Duration;

use quire_kvcache::{BlockHash, BlockHashes, PinError, PinId, StepId, TransferId};

use super::call::{Added, Call, Committed, Exception, Gauges, Planned};
use super::file::Header;
use super::ring::{DEFAULT_RING_BYTES, FlightRecorder};
use crate::cost::StepWork;
use crate::digest::PlanDigest;
use crate::error::{AddError, CommitError, ForkError, HoldError, ScheduleError};
use crate::hold::HoldReason;
use crate::ids::{SeqId, Time};
use crate::plan::StepPlan;
use crate::preemption::Rates;
use crate::result::{CommitReport, SequenceResult};
use crate::scheduler::Scheduler;
use crate::sequence::{FinishedSequence, NewSequence, Sequence};

/// A [`Scheduler`] with a flight recorder. Whatever changes the scheduler goes through here; all else is asked of its
/// [`view`](Self::view).
pub struct RecordedScheduler {
    scheduler: Scheduler,
    recorder: FlightRecorder,
    digest: PlanDigest,
    device_us: u64,
}

impl RecordedScheduler {
    /// Records a scheduler that has done nothing yet, in a ring of [`DEFAULT_RING_BYTES`].
    pub fn new(scheduler: Scheduler) -> Self {
        let recorder = FlightRecorder::new(Header::of(&scheduler), DEFAULT_RING_BYTES);
        Self { scheduler, recorder, digest: PlanDigest::default(), device_us: 0 }
    }

    /// The scheduler, to look at.
    pub fn view(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The recorder, to be read by anybody at any time.
    pub fn recorder(&self) -> FlightRecorder {
        self.recorder.clone()
    }

    /// A digest of all decisions so far.
    pub fn digest(&self) -> PlanDigest {
        self.digest
    }

    /// [`Scheduler::add`].
    ///
    /// # Errors
    /// As there.
    pub fn add(&mut self, new: NewSequence) -> Result<SeqId, AddError> {
        self.add_as(new, false)
    }

    /// [`Scheduler::add`] for one more sequence of a request that is there, which found no place as a fork: a recording
    /// tells it from a request of its own.
    ///
    /// # Errors
    /// As there.
    pub fn add_sibling(&mut self, new: NewSequence) -> Result<SeqId, AddError> {
        self.add_as(new, true)
    }

    fn add_as(&mut self, new: NewSequence, is_sibling: bool) -> Result<SeqId, AddError> {
        let seq = self.scheduler.add(new)?;
        if let Some(added) = self.scheduler.state.sequences.get(seq).map(|seq| added(seq, is_sibling)) {
            self.push(&Call::Add(added));
        }
        Ok(seq)
    }

    /// [`Scheduler::abort`].
    pub fn abort(&mut self, seq: SeqId) -> Option<FinishedSequence> {
        let finished = self.scheduler.abort(seq)?;
        self.push(&Call::Abort { seq: seq.0 });
        Some(finished)
    }

    /// [`Scheduler::hold`].
    ///
    /// # Errors
    /// As there.
    pub fn hold(&mut self, seq: SeqId, reason: HoldReason) -> Result<(), HoldError> {
        self.scheduler.hold(seq, reason)?;
        self.push(&Call::Hold { seq: seq.0, reason });
        Ok(())
    }

    /// [`Scheduler::release`].
    pub fn release(&mut self, seq: SeqId, reason: HoldReason) -> bool {
        let was_held = self.scheduler.release(seq, reason);
        if was_held {
            self.push(&Call::Release { seq: seq.0, reason });
        }
        was_held
    }

    /// [`Scheduler::fork`].
    ///
    /// # Errors
    /// As there.
    pub fn fork(&mut self, parent: SeqId, num_tokens: u32) -> Result<SeqId, ForkError> {
        let children = self.fork_many(parent, num_tokens, 1)?;
        Ok(children[0])
    }

    /// [`Scheduler::fork_many`].
    ///
    /// # Errors
    /// As there.
    pub fn fork_many(
        &mut self,
        parent: SeqId,
        num_tokens: u32,
        num_children: u32,
    ) -> Result<Vec<SeqId>, ForkError> {
        let children = self.scheduler.fork_many(parent, num_tokens, num_children)?;
        if let Some(child) = children.first().and_then(|child| self.scheduler.state.sequences.get(*child)) {
            let hashes = hashes(child);
            self.push(&Call::Fork { parent: parent.0, num_tokens, num_children, hashes });
        }
        Ok(children)
    }

    /// [`Scheduler::fork_with`].
    ///
    /// # Errors
    /// As there.
    pub fn fork_with(&mut self, parent: SeqId, num_tokens: u32, next: u32) -> Result<SeqId, ForkError> {
        let child = self.scheduler.fork_with(parent, num_tokens, next)?;
        let hashes = self.scheduler.state.sequences.get(child).map_or_else(Vec::new, hashes);
        self.push(&Call::ForkWith { parent: parent.0, num_tokens, hashes });
        Ok(child)
    }

    /// [`Scheduler::replace_last`].
    ///
    /// # Errors
    /// As there.
    pub fn replace_last(&mut self, seq: SeqId, token: u32) -> Result<(), ForkError> {
        self.scheduler.replace_last(seq, token)?;
        let block_size = self.scheduler.cache().config().block_size;
        let with = self.scheduler.state.sequences.get(seq);
        let full = with.filter(|with| with.num_tokens().is_multiple_of(block_size)).map(hashes);
        let hashes = full.and_then(|hashes| hashes.last().copied()).into_iter().collect();
        self.push(&Call::ReplaceLast { seq: seq.0, hashes });
        Ok(())
    }

    /// [`Scheduler::schedule`].
    ///
    /// # Errors
    /// As there.
    pub fn schedule(&mut self, now: Time) -> Result<Option<StepPlan>, ScheduleError> {
        if !self.scheduler.has_work() {
            return self.scheduler.schedule(now);
        }
        let outcome = self.scheduler.schedule(now);
        let planned = outcome.as_ref().ok().and_then(Option::as_ref).map(|plan| {
            self.digest.add(plan);
            let stats = self.scheduler.stats();
            let gauges = Gauges {
                num_running: stats.num_running as u32,
                num_waiting: stats.num_waiting as u32,
                num_swapped: stats.num_swapped as u32,
                live_blocks: stats.blocks.live,
            };
            Planned { work: StepWork::of(plan), check: self.digest.0 as u16, gauges }
        });
        self.push(&Call::Schedule { now: now.as_nanos(), planned });
        outcome
    }

    /// Notes how long the device worked on the step that is committed next.
    pub fn note_device_time(&mut self, time: Duration) {
        self.device_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    }

    /// [`Scheduler::commit`], at the time `now`.
    ///
    /// # Errors
    /// As there.
    pub fn commit(
        &mut self,
        step: StepId,
        results: &[SequenceResult<'_>],
        now: Time,
    ) -> Result<CommitReport, CommitError> {
        let (exceptions, hashes) = self.results(results);
        let report = self.scheduler.commit(step, results)?;
        let num_output = |seq: &FinishedSequence| seq.tokens.len() as u32 - seq.num_prompt_tokens;
        let finished = report.finished.iter().map(|seq| (seq.id.0, num_output(seq))).collect();
        let device_us = std::mem::take(&mut self.device_us);
        let now = now.as_nanos();
        self.push(&Call::Commit(Committed { now, device_us, exceptions, hashes, finished }));
        if self.recorder.wants_checkpoint() {
            self.recorder.push_checkpoint(self.scheduler.save());
        }
        Ok(report)
    }

    /// [`Scheduler::reset_prefix_cache`].
    pub fn reset_prefix_cache(&mut self) {
        self.scheduler.reset_prefix_cache();
        self.push(&Call::ResetPrefixCache);
    }

    /// [`Scheduler::pin_prefix`].
    ///
    /// # Errors
    /// As there.
    pub fn pin_prefix(&mut self, tokens: &[u32], hashes: &BlockHashes) -> Result<PinId, PinError> {
        let pin = self.scheduler.pin_prefix(tokens, hashes)?;
        self.push(&Call::Pin {
            salt: hashes.salt().low_bits(),
            num_tokens: tokens.len() as u32,
            hashes: hashes.as_slice().iter().map(|hash| hash.low_bits()).collect(),
        });
        Ok(pin)
    }

    /// [`Scheduler::unpin_prefix`].
    pub fn unpin_prefix(&mut self, pin: PinId) -> bool {
        let is_known = self.scheduler.unpin_prefix(pin);
        if is_known {
            self.push(&Call::Unpin { pin: pin.0 });
        }
        is_known
    }

    /// [`Scheduler::finish_transfers`].
    ///
    /// # Errors
    /// As there.
    pub fn finish_transfers(&mut self, transfers: &[TransferId]) -> Result<(), CommitError> {
        self.scheduler.finish_transfers(transfers)?;
        if !transfers.is_empty() {
            self.push(&Call::FinishTransfers {
                transfers: transfers.iter().map(|transfer| transfer.0).collect(),
            });
        }
        Ok(())
    }

    /// [`Scheduler::set_rates`].
    pub fn set_rates(&mut self, rates: Rates) {
        self.scheduler.set_rates(rates);
        let Rates { swap_bytes_per_s, prefill_tokens_per_s } = rates;
        self.push(&Call::SetRates { swap_bytes_per_s, prefill_tokens_per_s });
    }

    /// [`Scheduler::fail_open_steps`].
    pub fn fail_open_steps(&mut self) -> Vec<FinishedSequence> {
        self.push(&Call::FailOpenSteps);
        self.scheduler.fail_open_steps()
    }

    fn push(&self, call: &Call) {
        self.recorder.push(call, self.digest.0);
    }

    /// What is unusual about results, and the names of blocks that become full with them.
    fn results(&self, results: &[SequenceResult<'_>]) -> (Vec<Exception>, Vec<(u64, u64)>) {
        let (mut exceptions, mut hashes) = (Vec::new(), Vec::new());
        let current = results.iter().filter(|result| self.scheduler.is_current(result.seq, result.epoch));
        for (place, result) in current.enumerate() {
            if result.tokens.len() != 1 || result.finish.is_some() {
                let (place, num_tokens) = (place as u32, result.tokens.len() as u32);
                exceptions.push(Exception { place, num_tokens, finish: result.finish });
            }
            self.full_blocks(result, |hash| hashes.push((result.seq.0, hash.low_bits())));
        }
        (exceptions, hashes)
    }

    /// Names the blocks that a result makes full. What the scheduler does with it is the same, and later.
    fn full_blocks(&self, result: &SequenceResult<'_>, mut tell: impl FnMut(BlockHash)) {
        let cache = self.scheduler.cache();
        let Some(seq) = self.scheduler.state.sequences.get(result.seq) else { return };
        let block_size = cache.config().block_size as usize;
        let known = seq.hashes.as_slice();
        let num_full = (seq.tokens.len() + result.tokens.len()) / block_size;
        if !cache.config().enable_prefix_caching || num_full <= known.len() {
            return;
        }
        let mut parent = known.last().copied();
        let rest = seq.tokens.iter().chain(result.tokens).skip(known.len() * block_size);
        let rest: Vec<u32> = rest.copied().collect();
        for block in rest.chunks_exact(block_size) {
            let hash = cache.hasher().hash_block(parent, seq.hashes.salt(), block);
            tell(hash);
            parent = Some(hash);
        }
    }
}

fn added(seq: &Sequence, is_sibling: bool) -> Added {
    Added {
        seq: seq.id.0,
        arrival: seq.arrival.as_nanos(),
        prompt_tokens: seq.num_prompt_tokens,
        max_output_tokens: seq.max_output_tokens,
        tenant: seq.tenant.0,
        priority: seq.priority,
        salt: seq.hashes.salt().low_bits(),
        runs_ahead: seq.runs_ahead,
        is_sibling,
        hashes: hashes(seq),
    }
}

fn hashes(seq: &Sequence) -> Vec<u64> {
    seq.hashes.as_slice().iter().map(|hash| hash.low_bits()).collect()
}
