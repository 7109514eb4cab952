//! The state of the engine's thread.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use quire_executor::Executor;
use quire_scheduler::record::{FlightRecorder, RecordedScheduler};
use quire_scheduler::{
    Explanation, FinishedSequence, LogFilter, LogObserver, NewSequence, Scheduler, SeqId, SeqStatus,
    StepPlan, Time, WaitReason,
};

use super::active::{ActiveRequest, NewRequest};
use super::beams::{BeamGroup, NewBeams};
use super::inbox::{Command, Inbox, RequestKey, Status, Submission};
use super::places::Places;
use super::rates::MeasuredRates;
use super::requests::Requests;
use super::results::OpenStep;
use super::rows::RowSlots;
use super::step::finish_reason;
use super::throughput::Throughput;
use crate::checked::CheckedParams;
use crate::clock::Clock;
use crate::explain::RequestExplanation;
use crate::frontend::Prepared;
use crate::structured::GrammarCompiler;
use crate::text::TextDecoder;
use crate::{EngineStats, Error, FinishReason, RequestEvent, RequestId, Result};

/// In which order the calls of a step are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOrder {
    /// Each step is finished before the next is planned.
    Plain,
    /// A step is planned and submitted while the one before it runs.
    Overlapped,
}

/// Counters and gauges as of the last step, for everybody.
pub(crate) type SharedStats = Arc<Mutex<EngineStats>>;

/// What an [`EngineCore`] is made of.
pub(crate) struct CoreParts {
    pub(crate) scheduler: Scheduler,
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) order: StepOrder,
    pub(crate) decoder: TextDecoder,
    pub(crate) grammars: GrammarCompiler,
    pub(crate) clock: Clock,
    pub(crate) max_num_waiting: usize,
}

/// Owns scheduler and executor, and brings requests to their end, step by step, on one thread.
pub(crate) struct EngineCore {
    pub(super) scheduler: RecordedScheduler,
    pub(super) executor: Box<dyn Executor>,
    pub(super) requests: Requests,
    pub(super) rows: RowSlots,
    /// Steps submitted and not collected, the oldest first.
    pub(super) open: VecDeque<OpenStep>,
    pub(super) max_in_flight: usize,
    pub(super) rates: MeasuredRates,
    log_filter: LogFilter,
    pub(super) decoder: TextDecoder,
    pub(super) clock: Clock,
    pub(super) status: Status,
    pub(super) grammars: GrammarCompiler,
    /// Requests whose grammars have not been told of.
    pub(super) num_awaited_grammars: usize,
    order: StepOrder,
    commands: mpsc::Receiver<Command>,
    stats: EngineStats,
    shared_stats: SharedStats,
    throughput: Throughput,
}

impl EngineCore {
    /// The engine, its inbox, and its numbers.
    pub(crate) fn new(parts: CoreParts) -> (Self, Inbox, SharedStats) {
        let CoreParts { mut scheduler, executor, order, decoder, grammars, clock, max_num_waiting } = parts;
        let num_seats = scheduler.effective_config().max_num_seqs as usize;
        let (inbox, commands) = Inbox::channel(Places::new(num_seats, max_num_waiting));
        let shared_stats = SharedStats::default();
        let log_filter = LogFilter::default();
        scheduler.add_observer(LogObserver::new(log_filter.clone()));
        let mut core = Self {
            rows: RowSlots::new(scheduler.effective_config().max_num_seqs),
            max_in_flight: executor.capacity().max_in_flight.max(1),
            log_filter,
            rates: MeasuredRates::new(executor.capacity().swap_bytes_per_s),
            scheduler: RecordedScheduler::new(scheduler),
            executor,
            requests: Requests::default(),
            open: VecDeque::new(),
            decoder,
            clock,
            status: inbox.status().clone(),
            grammars,
            num_awaited_grammars: 0,
            order,
            commands,
            stats: EngineStats::default(),
            shared_stats: Arc::clone(&shared_stats),
            throughput: Throughput::default(),
        };
        core.publish_stats(clock.now());
        (core, inbox, shared_stats)
    }

    /// Whether it serves, for those who cannot see the thread.
    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// What the scheduler was asked and has decided.
    pub(crate) fn recorder(&self) -> FlightRecorder {
        self.scheduler.recorder()
    }

    /// Serves until it is told to stop, or cannot go on.
    ///
    /// # Errors
    ///
    /// Why it cannot go on; all requests have been told.
    pub(crate) fn run(mut self) -> Result<()> {
        let ended = self.serve();
        let error = match &ended {
            Ok(()) => Error::stopped("it was shut down"),
            Err(error) => {
                tracing::error!(target: "quire::engine", error = %super::recovery::chain(error), "the engine stops");
                match error {
                    Error::Stopped { .. } => error.clone(),
                    error => Error::stopped(super::recovery::chain(error)),
                }
            }
        };
        self.stop(error);
        ended
    }

    fn serve(&mut self) -> Result<()> {
        while self.take_commands() {
            let stepped = match self.order {
                StepOrder::Plain => self.plain_step(),
                StepOrder::Overlapped => self.overlapped_step(),
            };
            if let Err(error) = stepped {
                self.recover(error)?;
            }
        }
        Ok(())
    }

    /// Does what it is told; waits for a command where there is nothing to do. False is the end.
    fn take_commands(&mut self) -> bool {
        loop {
            self.expire_grammars();
            let is_idle = !self.scheduler.view().has_work() && self.open.is_empty();
            let command = match is_idle {
                true => {
                    self.throughput.pause();
                    match self.commands.recv_timeout(self.patience()) {
                        Err(mpsc::RecvTimeoutError::Timeout) => continue,
                        command => command.ok(),
                    }
                }
                false => match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(mpsc::TryRecvError::Empty) => return true,
                    Err(mpsc::TryRecvError::Disconnected) => None,
                },
            };
            match command {
                Some(Command::Submit(submission)) => self.add(*submission),
                Some(Command::Grammar(key, outcome)) => self.take_grammar(key, outcome),
                Some(Command::Abort(key)) => self.abort(key),
                // Whoever holds the engine wants what follows to be seen at once; dropping the other end lets it go on.
                Some(Command::Hold(held)) => drop(held.recv()),
                Some(Command::ResetPrefixCache) => self.scheduler.reset_prefix_cache(),
                Some(Command::ExplainAll(answer)) => drop(answer.send(self.explain_all())),
                Some(Command::Pin(tokens, hashes, answer)) => {
                    let _ = answer.send(self.scheduler.pin_prefix(&tokens, &hashes));
                }
                Some(Command::Unpin(pin, answer)) => drop(answer.send(self.scheduler.unpin_prefix(pin))),
                Some(Command::Explain(id, answer)) => drop(answer.send(self.explain(&id))),
                Some(Command::LogOnly(id)) => {
                    let seq = id.and_then(|id| self.requests.named(&id).first().copied());
                    self.log_filter.only(seq);
                }
                Some(Command::Stop) | None => return false,
            }
            self.publish_stats(self.clock.now());
        }
    }

    fn add(&mut self, submission: Submission) {
        let Submission { key, prepared, mut sink, place } = submission;
        let num_prompt_tokens = prepared.sequence.prompt.len() as u32;
        let arrival = prepared.sequence.arrival;
        let unforked = unforked(&prepared);
        let beams = prepared.beams.map(|params| NewBeams {
            params,
            prompt: prepared.sequence.prompt.clone(),
            like: like(&prepared.sequence),
            max_tokens: self.room_for_beams(num_prompt_tokens).min(prepared.sequence.max_output_tokens),
        });
        let awaits_grammar = prepared.grammar.is_some();
        self.num_awaited_grammars += usize::from(awaits_grammar);
        match self.scheduler.add(prepared.sequence) {
            Ok(seq) => {
                tracing::debug!(target: "quire::engine", request_id = %prepared.id, seq_id = seq.0, "waiting");
                self.note_arrival(&prepared.params);
                let request = NewRequest {
                    id: prepared.id,
                    key,
                    num_prompt_tokens,
                    arrival,
                    prompt: prepared.prompt,
                    params: prepared.params,
                    sampling: prepared.sampling,
                    detokenizer: prepared.detokenizer,
                    sink,
                    place,
                    unforked,
                    prompt_alone: prepared.prompt_alone,
                    beams: beams.map(|beams| Box::new(BeamGroup::new(seq, beams, self.decoder.clone()))),
                };
                self.requests.insert(seq, request);
                if awaits_grammar {
                    self.await_grammar(seq);
                }
            }
            Err(error) => sink.send(RequestEvent::Failed(quire_scheduler::Error::from(error).into())),
        }
    }

    /// Tokens that the beams of a prompt may generate: each may have to come back as a sequence that it is the prompt of.
    fn room_for_beams(&self, num_prompt_tokens: u32) -> u32 {
        let capacity = self.scheduler.view().cache().capacity();
        let in_pool = capacity.admissible_blocks().saturating_mul(capacity.block_size);
        let max_len = in_pool.min(self.scheduler.view().effective_config().max_model_len);
        max_len.saturating_sub(num_prompt_tokens)
    }

    /// Gives a request up, wherever it is; its blocks are free with the last open step that may touch them.
    fn abort(&mut self, key: RequestKey) {
        let seqs = self.requests.seqs_of(key);
        if let Some(request) = seqs.first().and_then(|first| self.requests.get_mut(*first)) {
            request.drop_unforked();
        }
        let finished = seqs.into_iter().filter_map(|seq| self.scheduler.abort(seq)).collect();
        self.finish(finished, self.clock.now());
    }

    fn explain(&self, id: &RequestId) -> Vec<Explanation> {
        let now = self.clock.now();
        self.requests
            .named(id)
            .into_iter()
            .filter_map(|seq| self.scheduler.view().explain(seq, now))
            .collect()
    }

    fn explain_all(&self) -> Vec<RequestExplanation> {
        let now = self.clock.now();
        let explain = |(seq, request, index): (SeqId, &ActiveRequest, u32)| {
            let explanation = self.scheduler.view().explain(seq, now)?;
            let behind = match explanation.waits_for {
                Some(WaitReason::Behind { head, .. }) => self.requests.get(head).map(|head| head.id.clone()),
                _ => None,
            };
            Some(RequestExplanation { request_id: request.id.clone(), index, explanation, behind })
        };
        self.requests.iter().filter_map(explain).collect()
    }

    /// Ends sequences that the scheduler has ended, and the requests that have no other. Numbers go before events: whoever
    /// hears of an end finds it counted.
    pub(super) fn finish(&mut self, finished: Vec<FinishedSequence>, now: Time) {
        let (mut ended, moment) = (Vec::new(), self.clock.instant(now));
        for finished in finished {
            let reason = finish_reason(finished.reason);
            let failure = self.requests.get(finished.id).and_then(ActiveRequest::failure).cloned();
            match failure {
                Some(error) => self.fail([finished.id], &error),
                None => {
                    let request = self.requests.end(finished, reason, moment);
                    ended.extend(request.map(|request| {
                        let reason = request.last_reason().unwrap_or(reason);
                        (request, reason)
                    }));
                }
            }
        }
        for (request, reason) in &ended {
            self.count_finish(*reason);
            let (num_prompt_tokens, num_tokens) = (request.num_prompt_tokens, request.num_output_tokens());
            if request.beams.is_some() {
                self.stats.num_generation_tokens += num_tokens as u64;
            }
            self.stats.distributions.note_end(&request.metrics(now), num_prompt_tokens, num_tokens);
        }
        self.publish_stats(now);
        ended.into_iter().for_each(|(request, reason)| tell_end(*request, reason, now));
    }

    /// Ends requests that failed, with all that they have in the scheduler.
    pub(super) fn fail(&mut self, failed: impl IntoIterator<Item = SeqId>, error: &Error) {
        let failed: Vec<_> = failed.into_iter().filter_map(|seq| self.requests.remove(seq)).collect();
        for (_, seqs) in &failed {
            seqs.iter().for_each(|seq| drop(self.scheduler.abort(*seq)));
            self.count_finish(FinishReason::Error);
        }
        self.publish_stats(self.clock.now());
        failed.into_iter().for_each(|(request, _)| tell_failure(*request, error.clone()));
    }

    fn count_finish(&mut self, reason: FinishReason) {
        *self.stats.num_finished.entry(reason).or_default() += 1;
    }

    fn note_arrival(&mut self, params: &CheckedParams) {
        self.stats.num_requests += 1;
        self.stats.distributions.n.observe(f64::from(params.n()));
        if let Some(max_tokens) = params.max_tokens() {
            self.stats.distributions.max_tokens.observe(f64::from(max_tokens));
        }
    }

    /// Counts tokens that were taken over. True where other sequences may have to be made of this one.
    pub(super) fn note_tokens(&mut self, seq: SeqId, num_tokens: u32, now: Time) -> bool {
        let Some(request) = self.requests.get(seq) else { return false };
        // What a search has generated is what it returns.
        if request.beams.is_none() {
            self.stats.num_generation_tokens += u64::from(num_tokens);
        }
        if request.prompt_alone {
            self.stats.num_prompt_tokens += u64::from(request.num_prompt_tokens);
        }
        if let Some(gap) = request.last_gap(seq) {
            self.stats.distributions.inter_token_s.observe(gap.as_secs_f64());
        }
        if request.is_at_first_token(seq) && num_tokens > 0 {
            self.stats.num_first_tokens += 1;
            self.stats.distributions.ttft_s.observe(now.since(request.arrival).as_secs_f64());
            self.stats.num_prompt_tokens += u64::from(request.num_prompt_tokens);
        }
        request.grows()
    }

    /// Counts what a step computes.
    pub(super) fn note_step(&mut self, plan: &StepPlan) {
        let num_tokens: u32 = plan.rows.iter().map(|row| row.num_tokens).sum();
        self.stats.distributions.step_tokens.observe(f64::from(num_tokens));
    }

    /// Counts how the device spent its time.
    pub(super) fn note_device(&mut self, time_us: u64, idle_us: u64) {
        self.stats.distributions.step_s.observe(time_us as f64 / 1e6);
        self.stats.device_time_us += time_us;
        self.stats.device_idle_us += idle_us;
    }

    /// Shows the present numbers to everybody.
    pub(super) fn publish_stats(&mut self, now: Time) {
        let scheduler = self.scheduler.view().stats();
        let stats = &mut self.stats;
        stats.num_running = scheduler.num_running;
        stats.num_waiting = scheduler.num_waiting;
        stats.num_swapped = scheduler.num_swapped;
        stats.num_live_blocks = scheduler.blocks.live as usize;
        stats.num_cached_blocks = scheduler.blocks.cached as usize;
        stats.num_free_blocks = scheduler.blocks.free as usize;
        stats.num_prefix_query_tokens = scheduler.prefix.query_tokens;
        stats.num_prefix_hit_tokens = scheduler.prefix.hit_tokens;
        stats.num_preemptions = scheduler.num_preemptions;
        stats.num_swaps = scheduler.num_swaps;
        stats.num_swap_blocks = scheduler.swap.total as usize;
        stats.num_free_swap_blocks = scheduler.swap.free as usize;
        stats.admission_limit = scheduler.thrash.limit;
        for (class, num_waiting) in self.scheduler.view().waiting_by_reason() {
            stats.waiting_by_reason.insert(class.name(), num_waiting);
        }
        count_requests(stats, &self.requests, self.scheduler.view());
        stats.num_steps = scheduler.num_steps;
        stats.num_step_tokens = scheduler.num_scheduled_tokens;
        self.throughput.note(stats, now);
        self.shared_stats.lock().clone_from(stats);
    }
}

/// From sequences to requests: one runs where any of its sequences does, else it waits for what its first sequence waits
/// for, and is swapped where all of them are.
fn count_requests(stats: &mut EngineStats, requests: &Requests, scheduler: &Scheduler) {
    for seqs in requests.shared() {
        let (mut running, mut waiting, mut swapped) = (0, 0, 0);
        let mut reasons = Vec::new();
        for seq in seqs {
            reasons.extend(scheduler.wait_class(seq));
            match scheduler.seq(seq).map(|seq| seq.status()) {
                Some(SeqStatus::Running) => running += 1,
                Some(SeqStatus::Swapped) => (swapped, waiting) = (swapped + 1, waiting + 1),
                Some(_) => waiting += 1,
                // It has ended in the step that is being committed.
                None => {}
            }
        }
        if running + waiting == 0 {
            continue;
        }
        let is_running = usize::from(running > 0);
        let is_swapped = usize::from(running == 0 && swapped == waiting);
        for reason in &reasons[(1 - is_running).min(reasons.len())..] {
            stats.waiting_by_reason.entry(reason.name()).and_modify(|num| *num = num.saturating_sub(1));
        }
        stats.num_running -= running - is_running;
        stats.num_waiting -= waiting - (1 - is_running);
        stats.num_swapped -= swapped - is_swapped;
    }
}

/// What a request of several outputs will want when its prompt is computed.
fn unforked(prepared: &Prepared) -> Option<(u32, NewSequence)> {
    let num = prepared.params.n() - 1;
    if num == 0 {
        return None;
    }
    // The hashes of the prompt's blocks were computed on the caller's thread, once for all.
    let like = NewSequence { hashes: prepared.sequence.hashes.clone(), ..like(&prepared.sequence) };
    Some((num, like))
}

/// A sequence without its prompt.
fn like(sequence: &NewSequence) -> NewSequence {
    let NewSequence { max_output_tokens, arrival, tenant, priority, salt, runs_ahead, .. } = *sequence;
    let prompt = Vec::new();
    NewSequence { prompt, max_output_tokens, arrival, tenant, priority, salt, runs_ahead, hashes: None }
}

fn tell_end(request: ActiveRequest, reason: FinishReason, now: Time) {
    let (request_id, num_prompt_tokens) = (request.id.clone(), request.num_prompt_tokens);
    let num_tokens = request.num_output_tokens();
    if reason == FinishReason::Abort {
        tracing::info!(target: "quire::engine", %request_id, num_prompt_tokens, num_tokens, "given up by its client");
    }
    let metrics = request.finish(now);
    tracing::debug!(
        target: "quire::engine",
        %request_id, reason = reason.name(), num_prompt_tokens, num_tokens, queue_ms = metrics.queue_ms,
        ttft_ms = metrics.ttft_ms, e2e_ms = metrics.e2e_ms, num_preemptions = metrics.num_preemptions, "finished"
    );
}

fn tell_failure(mut request: ActiveRequest, error: Error) {
    tracing::debug!(target: "quire::engine", request_id = %request.id, reason = "error", %error, "finished");
    request.sink.send(RequestEvent::Failed(error));
}
