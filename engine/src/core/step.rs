//! The step loop.

use std::time::{Duration, Instant};

use quire_scheduler::{FinishReason as SeqFinish, PlannedRow, RowKind, StepPlan};

use super::batch::{Facts, RowFacts, step_batch};
use super::engine_core::EngineCore;
use super::gate::GatedRow;
use super::places::Place;
use super::results::{CollectedStep, OpenStep};
use crate::{Error, Result};

impl EngineCore {
    /// Plain: a step is finished before the next is planned.
    pub(super) fn plain_step(&mut self) -> Result<()> {
        if let Some(plan) = self.schedule()? {
            self.submit(&plan)?;
            let results = self.collect()?;
            self.commit(results)?;
        }
        Ok(())
    }

    /// Overlapped: step N is planned and submitted while step N-1 runs. The same calls in another order.
    pub(super) fn overlapped_step(&mut self) -> Result<()> {
        let plan = self.schedule()?;
        if let Some(plan) = &plan {
            self.submit(plan)?;
        }
        if self.open.len() >= self.max_in_flight || (plan.is_none() && !self.open.is_empty()) {
            let results = self.collect()?;
            self.commit(results)?;
        }
        Ok(())
    }

    fn schedule(&mut self) -> Result<Option<StepPlan>> {
        let plan = self.scheduler.schedule(self.clock.now()).map_err(quire_scheduler::Error::from)?;
        if let Some(plan) = &plan {
            self.note_plan(plan);
        }
        Ok(plan)
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<()> {
        let facts = |seq| {
            let request = self.requests.get(seq).expect("a planned sequence belongs to a request");
            let num_prompt_tokens = request.num_prompt_tokens;
            RowFacts { num_prompt_tokens, sampling: request.sampling(seq) }
        };
        let is_gated = |seq| self.requests.get(seq).is_some_and(|request| request.is_gated);
        let facts = Facts { of_row: facts, is_gated };
        let batch = step_batch(plan, self.scheduler.view(), &mut self.rows, facts);
        let gated = GatedRow::of(plan, &batch);
        let ticket = self.executor.submit(batch)?;
        self.note_step(plan);
        self.open.push_back(OpenStep::new(plan, ticket, gated));
        self.rates.note_submitted(plan);
        self.provide_masks()
    }

    fn collect(&mut self) -> Result<CollectedStep> {
        let OpenStep { step, ticket, rows, .. } =
            self.open.pop_front().expect("collect is called with a step open");
        let output = self.executor.collect(ticket)?;
        self.note_device(output.device_time_us, output.device_idle_us);
        self.scheduler.note_device_time(Duration::from_micros(output.device_time_us));
        self.rates.note_collected(output.device_time_us, &mut self.scheduler);
        CollectedStep::new(step, rows, output)
    }

    fn commit(&mut self, collected: CollectedStep) -> Result<()> {
        let now = self.clock.now();
        let transfers = collected.transfers_done();
        self.scheduler.finish_transfers(&transfers).map_err(quire_scheduler::Error::from)?;
        let results = collected.results(self.scheduler.view(), &mut self.requests, &self.decoder, now);
        let mut report =
            self.scheduler.commit(collected.step, &results, now).map_err(quire_scheduler::Error::from)?;
        report.finished.iter().for_each(|finished| self.add_unforked(finished));
        for &(seq, num_tokens) in &report.accepted {
            if self.note_tokens(seq, num_tokens, now) {
                report.finished.extend(self.fork(seq));
                report.finished.extend(self.advance_beams(seq));
            }
        }
        self.finish(report.finished, now);
        // The device may wait for them.
        self.provide_masks()?;
        let moment = self.clock.instant(now);
        for seq in collected.seqs() {
            self.emit(seq, moment);
        }
        Ok(())
    }

    /// Sends what a request has to show, or its failure.
    fn emit(&mut self, seq: quire_scheduler::SeqId, moment: Instant) {
        let Some(request) = self.requests.get_mut(seq) else { return };
        match request.failure().cloned() {
            None => request.emit(seq, moment),
            Some(error) => self.fail([seq], &error),
        }
    }

    /// Logs what a plan means for its requests; those that run for the first time wait no more.
    fn note_plan(&mut self, plan: &StepPlan) {
        let step = plan.step.0;
        let is_logged = tracing::enabled!(target: TARGET, tracing::Level::DEBUG);
        // Rows that go on have their seats.
        let told = |row: &&PlannedRow| is_logged || row.kind != RowKind::Continuing;
        for row in plan.rows.iter().filter(told) {
            let Some(request) = self.requests.get_mut(row.seq) else { continue };
            request.place.iter_mut().for_each(Place::seat);
            let request_id = &request.id;
            if row.kind != RowKind::Continuing {
                let (num_blocks, num_cached_tokens) = (row.new_blocks.len(), row.start);
                tracing::debug!(target: TARGET, %request_id, step, num_blocks, num_cached_tokens, "allocated");
            }
            let num_tokens = row.num_tokens;
            if row.start < request.num_prompt_tokens {
                tracing::debug!(target: TARGET, %request_id, step, start = row.start, num_tokens, "prefill");
            } else {
                tracing::debug!(target: TARGET, %request_id, step, start = row.start, num_tokens, "decode");
            }
        }
        for &seq in &plan.preempted {
            if let Some(request) = self.requests.get(seq) {
                tracing::debug!(target: TARGET, request_id = %request.id, step, "preempted");
            }
        }
    }
}

const TARGET: &str = "quire::engine";

/// The engine's word for the scheduler's reason.
pub(super) fn finish_reason(reason: SeqFinish) -> crate::FinishReason {
    match reason {
        SeqFinish::Stop => crate::FinishReason::Stop,
        SeqFinish::Length => crate::FinishReason::Length,
        SeqFinish::Abort => crate::FinishReason::Abort,
        _ => crate::FinishReason::Error,
    }
}

/// Whether the engine can go on after an error of a step, once the device has been reset.
pub(super) fn is_recoverable(error: &Error) -> bool {
    matches!(error, Error::Executor(_) | Error::StepOutput { .. })
}
