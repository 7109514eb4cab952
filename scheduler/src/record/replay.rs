//! The recorded calls, made again.

use quire_kvcache::{BlockHash, BlockHashes, CacheSalt, PinId, TransferId};

use super::call::{Added, Base, Call, Committed};
use super::error::RecordingError;
use super::file::{Calls, Recording};
use crate::digest::PlanDigest;
use crate::ids::{SeqId, TenantId, Time};
use crate::plan::StepPlan;
use crate::policy::SchedulerPolicy;
use crate::preemption::Rates;
use crate::result::SequenceResult;
use crate::scheduler::Scheduler;
use crate::sequence::NewSequence;
use crate::stats::SchedulerStats;

/// A replay that came to the recorded decisions, all of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Replayed {
    /// The first step planned again: 1, or that behind the oldest checkpoint where the ring has overwritten its beginning.
    pub first_step: u64,
    /// Steps planned again.
    pub num_steps: u64,
    /// The digest of all plans since the scheduler began, equal to the recorded one.
    pub digest: PlanDigest,
    /// The scheduler's numbers at the end.
    pub stats: SchedulerStats,
}

impl Recording {
    /// Makes the recorded calls again, on the real scheduler and block manager, and compares every decision. Where the
    /// ring has overwritten its beginning, from the oldest checkpoint on.
    ///
    /// # Errors
    /// [`RecordingError::Diverged`] at the first step that differs; [`RecordingError::NumSteps`] where all are equal, but not
    /// as many as the header says; [`RecordingError::NoBeginning`] where the ring has
    /// overwritten the first calls and holds no checkpoint, as of a policy that does not save its state.
    pub fn replay(&self, policy: Box<dyn SchedulerPolicy>) -> Result<Replayed, RecordingError> {
        self.replay_with(policy, |_, _| ())
    }

    /// As [`replay`](Self::replay), and shows every plan, with the scheduler as it is then.
    ///
    /// # Errors
    /// As there.
    pub fn replay_with(
        &self,
        policy: Box<dyn SchedulerPolicy>,
        mut see: impl FnMut(&StepPlan, &Scheduler),
    ) -> Result<Replayed, RecordingError> {
        let mut calls = self.calls();
        let mut replay = self.beginning(policy, &mut calls)?;
        let first_step = replay.step + 1;
        while let Some(call) = calls.next() {
            let call = call?;
            if matches!(call, Call::Base(_)) && calls.base().digest != replay.digest.0 {
                return Err(RecordingError::Diverged { step: replay.step });
            }
            replay.make(call, &mut see)?;
        }
        if replay.digest.0 != self.header.digest {
            return Err(RecordingError::Diverged { step: replay.step });
        }
        let Replay { scheduler, digest, step } = replay;
        if step != self.header.num_steps {
            return Err(RecordingError::NumSteps { header: self.header.num_steps, replayed: step });
        }
        Ok(Replayed { first_step, num_steps: step + 1 - first_step, digest, stats: scheduler.stats() })
    }

    /// A scheduler before the first call; or, behind the oldest checkpoint, one of the state that it keeps.
    fn beginning(
        &self,
        policy: Box<dyn SchedulerPolicy>,
        calls: &mut Calls<'_>,
    ) -> Result<Replay, RecordingError> {
        let dropped_bytes = self.dropped_bytes();
        if dropped_bytes == 0 {
            let scheduler = self.scheduler(policy)?;
            return Ok(Replay { scheduler, digest: PlanDigest::default(), step: 0 });
        }
        let words = loop {
            match calls.next().ok_or(RecordingError::NoBeginning { dropped_bytes })?? {
                Call::Checkpoint { words } => break words,
                _ => continue,
            }
        };
        let config = self.header.scheduler.clone();
        let scheduler = Scheduler::restore(config, policy, self.cache_config(), &words);
        let &Base { step, digest, .. } = calls.base();
        let scheduler = scheduler.ok_or(RecordingError::BadCheckpoint { step })?;
        Ok(Replay { scheduler, digest: PlanDigest(digest), step })
    }
}

struct Replay {
    scheduler: Scheduler,
    digest: PlanDigest,
    /// The step planned last.
    step: u64,
}

impl Replay {
    fn make(
        &mut self,
        call: Call,
        see: &mut impl FnMut(&StepPlan, &Scheduler),
    ) -> Result<(), RecordingError> {
        match call {
            Call::Base(_) => {}
            Call::Add(added) => self.add(&added)?,
            Call::Schedule { now, planned } => {
                let plan = self.scheduler.schedule(Time::from_nanos(now)).map_err(|e| self.refused(&e))?;
                let has_plan = plan.is_some();
                if let Some(plan) = plan {
                    self.digest.add(&plan);
                    self.step = plan.step.0;
                    see(&plan, &self.scheduler);
                }
                let check = planned.map_or(self.digest.0 as u16, |planned| planned.check);
                if has_plan != planned.is_some() || check != self.digest.0 as u16 {
                    return Err(RecordingError::Diverged { step: self.step + u64::from(!has_plan) });
                }
            }
            Call::Commit(committed) => self.commit(&committed)?,
            Call::Abort { seq } => drop(self.scheduler.abort(SeqId(seq))),
            Call::Hold { seq, reason } => {
                self.scheduler.hold(SeqId(seq), reason).map_err(|error| self.refused(&error))?;
            }
            Call::Release { seq, reason } => drop(self.scheduler.release(SeqId(seq), reason)),
            Call::Fork { parent, num_tokens, num_children, hashes } => {
                let children = self.scheduler.fork_many(SeqId(parent), num_tokens, num_children);
                for child in children.map_err(|error| self.refused(&error))? {
                    if let Some(seq) = self.scheduler.state.sequences.get_mut(child) {
                        seq.hashes = block_hashes(seq.hashes.salt(), &hashes);
                    }
                }
            }
            Call::ForkWith { parent, num_tokens, hashes } => {
                let child = self.scheduler.fork_with(SeqId(parent), num_tokens, 0);
                let child = child.map_err(|error| self.refused(&error))?;
                if let Some(seq) = self.scheduler.state.sequences.get_mut(child) {
                    seq.hashes = block_hashes(seq.hashes.salt(), &hashes);
                }
            }
            Call::ReplaceLast { seq, hashes } => self.replace_last(SeqId(seq), &hashes)?,
            Call::ResetPrefixCache => self.scheduler.reset_prefix_cache(),
            Call::Pin { salt, num_tokens, hashes } => {
                let hashes = block_hashes(CacheSalt::from_low_bits(salt), &hashes);
                let tokens = vec![0; num_tokens.min(MAX_PINNED_TOKENS) as usize];
                self.scheduler.pin_prefix(&tokens, &hashes).map_err(|error| self.refused(&error))?;
            }
            Call::Unpin { pin } => drop(self.scheduler.unpin_prefix(PinId(pin))),
            Call::FailOpenSteps => drop(self.scheduler.fail_open_steps()),
            Call::FinishTransfers { transfers } => {
                let transfers: Vec<_> = transfers.into_iter().map(TransferId).collect();
                self.scheduler.finish_transfers(&transfers).map_err(|error| self.refused(&error))?;
            }
            Call::SetRates { swap_bytes_per_s, prefill_tokens_per_s } => {
                self.scheduler.set_rates(Rates { swap_bytes_per_s, prefill_tokens_per_s });
            }
            // The state of today must be that of then, to the last block.
            Call::Checkpoint { words } if self.scheduler.save().is_none_or(|now| now == words) => {}
            Call::Checkpoint { .. } => return Err(RecordingError::Diverged { step: self.step }),
        }
        Ok(())
    }

    fn replace_last(&mut self, id: SeqId, hashes: &[u64]) -> Result<(), RecordingError> {
        self.scheduler.replace_last(id, 0).map_err(|error| self.refused(&error))?;
        let block_size = self.scheduler.cache().config().block_size;
        if let Some(seq) = self.scheduler.state.sequences.get_mut(id) {
            seq.hashes.truncate(seq.tokens.len() - 1, block_size);
            hashes.iter().for_each(|&hash| seq.hashes.push(BlockHash::from_low_bits(hash)));
        }
        Ok(())
    }

    fn add(&mut self, added: &Added) -> Result<(), RecordingError> {
        let fits = added.prompt_tokens <= self.scheduler.effective_config().max_model_len;
        if !fits {
            return Err(self.refused(&format!("a prompt of {} tokens", added.prompt_tokens)));
        }
        let salt = CacheSalt::from_low_bits(added.salt);
        let new = NewSequence {
            // Which tokens they are does not matter: blocks are told apart by their names.
            prompt: vec![0; added.prompt_tokens as usize],
            max_output_tokens: added.max_output_tokens,
            arrival: Time::from_nanos(added.arrival),
            tenant: TenantId(added.tenant),
            priority: added.priority,
            salt,
            runs_ahead: added.runs_ahead,
            hashes: Some(block_hashes(salt, &added.hashes)),
        };
        let seq = self.scheduler.add(new).map_err(|error| self.refused(&error))?;
        if seq.0 == added.seq {
            return Ok(());
        }
        Err(self.refused(&format!("sequence {} was {} when it was recorded", seq, added.seq)))
    }

    fn commit(&mut self, committed: &Committed) -> Result<(), RecordingError> {
        let open = self.scheduler.state.open.front().cloned();
        let open = open.ok_or_else(|| self.refused(&"a commit without an open step"))?;
        for &(seq, hash) in &committed.hashes {
            if let Some(seq) = self.scheduler.state.sequences.get_mut(SeqId(seq)) {
                seq.hashes.push(BlockHash::from_low_bits(hash));
            }
        }
        let mut exceptions = committed.exceptions.iter().peekable();
        let sampled = open.rows.iter().filter(|row| row.samples);
        let current = sampled.filter(|row| self.scheduler.is_current(row.seq, row.epoch));
        let results = current.enumerate().map(|(place, row)| {
            let unusual = exceptions.next_if(|exception| exception.place as usize == place);
            let num_tokens = unusual.map_or(1, |unusual| unusual.num_tokens as usize);
            let finish = unusual.and_then(|unusual| unusual.finish);
            let tokens = TOKENS.get(..num_tokens).unwrap_or(&TOKENS);
            SequenceResult { seq: row.seq, epoch: row.epoch, tokens, finish }
        });
        let results: Vec<_> = results.collect();
        self.scheduler.commit(open.id, &results).map_err(|error| self.refused(&error))?;
        Ok(())
    }

    fn refused(&self, reason: &dyn std::fmt::Display) -> RecordingError {
        RecordingError::Refused { step: self.step, reason: reason.to_string() }
    }
}

/// More than any context; a broken recording asks for no more memory.
const MAX_PINNED_TOKENS: u32 = 1 << 24;

/// More than a row ever brings.
const TOKENS: [u32; 64] = [0; 64];

fn block_hashes(salt: CacheSalt, names: &[u64]) -> BlockHashes {
    let mut hashes = BlockHashes::new(salt);
    names.iter().for_each(|&name| hashes.push(BlockHash::from_low_bits(name)));
    hashes
}
