//! The scheduler: sequences in, plans out, results back.

use std::collections::{BTreeMap, VecDeque};

use quire_kvcache::{
    Admission, BlockHashes, BlockId, BlockTable, KvCacheManager, PinError, PinId, StepId, TransferId,
};

use crate::builder::StepBuilder;
use crate::config::SchedulerConfig;
use crate::error::{AddError, CommitError, ConfigError, ScheduleError};
use crate::explain::WaitCounts;
use crate::hold::Holds;
use crate::ids::{ClassId, Epoch, SeqId, Time};
use crate::observer::StepObserver;
use crate::plan::{RowKind, StepPlan};
use crate::policy::{EventKind, Rank, Rerank, SchedEvent, SchedulerPolicy};
use crate::preemption::Rates;
use crate::queue::Waiting;
use crate::running::RunningSet;
use crate::sequence::{FinishReason, FinishedSequence, NewSequence, SeqStatus, Sequence, SequenceView};
use crate::slots::Sequences;
use crate::state::{Counters, State};
use crate::thrash::ThrashGuard;

/// `schedule` calls that the oldest running sequence may be passed over by a policy before it is served first.
const MAX_PASSED_OVER: u64 = 32;

/// Continuous batching: decides at every step which sequences compute how many tokens, in which blocks.
///
/// A step is planned by [`schedule`](Self::schedule) and ended by [`commit`](Self::commit). The next may be planned
/// before the last is committed: what is not known yet is described as in flight.
pub struct Scheduler {
    pub(crate) state: State,
    pub(crate) policy: Box<dyn SchedulerPolicy>,
}

impl Scheduler {
    /// A scheduler without sequences.
    ///
    /// # Errors
    /// See [`SchedulerConfig::validate`].
    pub fn new(
        config: SchedulerConfig,
        policy: Box<dyn SchedulerPolicy>,
        cache: KvCacheManager,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let state = State {
            config,
            cache,
            sequences: Sequences::default(),
            waiting: Waiting::default(),
            num_held: 0,
            running: RunningSet::default(),
            open: VecDeque::new(),
            next_step: StepId(1),
            schedule: 0,
            released: Vec::new(),
            preempted: Vec::new(),
            transfers: Vec::new(),
            owners: BTreeMap::new(),
            rates: None,
            refused: WaitCounts::default(),
            thrash: ThrashGuard::default(),
            counters: Counters::default(),
            observers: Vec::new(),
        };
        Ok(Self { state, policy })
    }

    /// Adds somebody who sees every decision from now on.
    pub fn add_observer(&mut self, observer: impl StepObserver + 'static) {
        self.state.observers.push(Box::new(observer));
    }

    /// Adds a sequence. Its output is bounded by its own limit, by `max_model_len` and by the pool, whichever is least;
    /// it ends as [`FinishReason::Length`] there. A prompt of `max_model_len` may ask for one token: the last token of an
    /// output is not computed, and needs no room.
    ///
    /// # Errors
    /// An [`AddError`] for what could never run; nothing is queued then.
    pub fn add(&mut self, new: NewSequence) -> Result<SeqId, AddError> {
        let max_output_tokens = self.bound_output(&new)?;
        let id = self.state.sequences.next_id();
        let mut seq = waiting_sequence(id, new, max_output_tokens);
        if self.state.cache.config().enable_prefix_caching {
            self.state.cache.hasher().extend(&mut seq.hashes, &seq.tokens);
        }
        self.enqueue(seq);
        Ok(id)
    }

    /// Ends a sequence at the caller's wish, in whatever state it is; `None` if it has ended already. Its blocks are
    /// free at once, or with the commit of the last open step that may touch them.
    pub fn abort(&mut self, seq: SeqId) -> Option<FinishedSequence> {
        self.end(seq, FinishReason::Abort)
    }

    /// Plans the next step. `None` says that there is nothing to compute now: no sequence is left that is not held, or all
    /// wait for the commit of a step that is open.
    ///
    /// # Errors
    /// [`ScheduleError::Stuck`] if there is work, no step is open, and nothing can be planned. That is a bug.
    pub fn schedule(&mut self, now: Time) -> Result<Option<StepPlan>, ScheduleError> {
        if !self.has_work() {
            return Ok(None);
        }
        self.state.schedule += 1;
        let is_starved = self.oldest_is_starved();
        let has_open_steps = !self.state.open.is_empty();
        let mut step = StepBuilder::new(&mut self.state, now);
        if is_starved {
            step.serve_oldest();
        }
        self.policy.plan(&mut step);
        if step.num_rows() == 0 && !has_open_steps {
            step.serve_oldest();
        }
        let plan = step.finish();
        self.state.note_step(plan.as_ref());
        if plan.is_none() && !has_open_steps {
            return Err(ScheduleError::Stuck { step: self.state.next_step, dump: self.state.dump() });
        }
        self.tell_policy(plan.as_ref());
        Ok(plan)
    }

    /// Whether any sequence is waiting or running, or blocks are on their way.
    pub fn has_unfinished(&self) -> bool {
        self.state.sequences.len() > 0 || self.state.has_transfers()
    }

    /// Steps planned and not committed.
    pub fn num_open_steps(&self) -> usize {
        self.state.open.len()
    }

    /// An unfinished sequence.
    pub fn seq(&self, seq: SeqId) -> Option<SequenceView<'_>> {
        self.state.view(seq)
    }

    /// The known token ids of an unfinished sequence, prompt and output; empty for any other.
    pub fn tokens(&self, seq: SeqId) -> &[u32] {
        self.state.sequences.get(seq).map_or(&[], |seq| &seq.tokens)
    }

    /// The blocks that a sequence holds, in the order of positions; empty if it does not run.
    pub fn block_table(&self, seq: SeqId) -> &[BlockId] {
        self.state.sequences.get(seq).map_or(&[], |seq| seq.table.blocks())
    }

    /// Whether a result of that epoch will count: to be asked before stop conditions are looked at.
    pub fn is_current(&self, seq: SeqId, epoch: Epoch) -> bool {
        let current = |seq: &Sequence| seq.status == SeqStatus::Running && seq.epoch == epoch;
        self.state.sequences.get(seq).is_some_and(current)
    }

    /// The configuration in force.
    pub fn effective_config(&self) -> &SchedulerConfig {
        &self.state.config
    }

    /// The block manager, to look at.
    pub fn cache(&self) -> &KvCacheManager {
        &self.state.cache
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &str {
        self.policy.name()
    }

    /// Forgets all cached contents, as after a change of weights. What runs now goes on, and enters the cache no more.
    pub fn reset_prefix_cache(&mut self) {
        self.state.cache.reset_prefix_cache();
    }

    /// Keeps a beginning in the prefix cache until it is unpinned: see [`KvCacheManager::pin`].
    ///
    /// # Errors
    /// A [`PinError`], and nothing has changed.
    pub fn pin_prefix(&mut self, tokens: &[u32], hashes: &BlockHashes) -> Result<PinId, PinError> {
        self.state.cache.pin(tokens, hashes)
    }

    /// Lets a pinned beginning go; false if there is no such pin.
    pub fn unpin_prefix(&mut self, pin: PinId) -> bool {
        self.state.cache.unpin(pin)
    }

    /// What is to be done after a device error, together with a reset of the device, which forgets all rows: the sequences of all open steps end with [`FinishReason::Error`], the
    /// other running ones start over, since the device has lost their blocks, and the prefix cache and the swap space are emptied.
    pub fn fail_open_steps(&mut self) -> Vec<FinishedSequence> {
        let open = std::mem::take(&mut self.state.open);
        let current = |seq: &Sequence, epoch| seq.status == SeqStatus::Running && seq.epoch == epoch;
        let mut finished = Vec::new();
        for row in open.iter().flat_map(|step| &step.rows) {
            if self.state.sequences.get(row.seq).is_some_and(|seq| current(seq, row.epoch)) {
                finished.extend(self.end(row.seq, FinishReason::Error));
            }
        }
        self.state.schedule += 1;
        let running: Vec<_> = self.state.running.ids().collect();
        running.into_iter().for_each(|seq| self.state.preempt(seq));
        self.state.fail_transfers();
        self.state.released.clear(); // a device that was reset knows no sequence
        self.state.cache.reset_prefix_cache();
        if let Some(last) = open.back() {
            self.state.cache.commit(last.id);
        }
        finished
    }

    /// Transfers of earlier plans are done, as the device reports with a step: to be told before that step is committed.
    ///
    /// # Errors
    /// [`CommitError::UnknownTransfer`] for one that is not open; those before it are taken over.
    pub fn finish_transfers(&mut self, transfers: &[TransferId]) -> Result<(), CommitError> {
        transfers.iter().try_for_each(|transfer| self.state.finish_transfer(*transfer))
    }

    /// Tells what has been measured of the device, so that [`Preemption::Auto`](crate::Preemption::Auto) can choose.
    pub fn set_rates(&mut self, rates: Rates) {
        self.state.rates = Some(rates);
    }

    /// What was measured of the device, if it was.
    pub fn rates(&self) -> Option<Rates> {
        self.state.rates
    }

    pub(crate) fn end(&mut self, seq: SeqId, reason: FinishReason) -> Option<FinishedSequence> {
        let seq = self.state.end(seq, reason)?;
        let view = SequenceView(&seq, &self.state.cache);
        let rerank = self.policy.on_event(&SchedEvent { seq: view, kind: EventKind::Finished(reason) });
        self.rerank(rerank);
        Some(seq.into_finished(reason))
    }

    /// Room for output: the limit of the request, of the model, and of the pool.
    fn bound_output(&self, new: &NewSequence) -> Result<u32, AddError> {
        let max_model_len = self.state.config.max_model_len;
        let num_tokens = match u32::try_from(new.prompt.len()) {
            Ok(0) => return Err(AddError::EmptyPrompt),
            Ok(num_tokens) if num_tokens < max_model_len => num_tokens,
            Ok(num_tokens) if num_tokens == max_model_len && new.max_output_tokens == 1 => num_tokens,
            _ => return Err(AddError::PromptTooLong { num_tokens: new.prompt.len(), max_model_len }),
        };
        if new.max_output_tokens == 0 {
            return Err(AddError::NoOutput);
        }
        if let Admission::Never { need, have } = self.state.cache.can_allocate(num_tokens) {
            return Err(AddError::NeverFits { num_tokens, need, have });
        }
        let pool = self.state.cache.capacity().max_len_that_fits();
        let room = max_model_len.min(pool) - num_tokens;
        Ok(new.max_output_tokens.min(room.max(1)))
    }

    fn enqueue(&mut self, mut seq: Sequence) {
        let view = SequenceView(&seq, &self.state.cache);
        (seq.class, seq.rank) = (self.policy.class(&view), self.policy.rank(&view));
        let (id, arrival) = (seq.id, seq.arrival);
        self.state.waiting.insert(&seq);
        self.state.sequences.push(seq);
        self.state.observe(id, |observer, seq| observer.arrived(seq, arrival));
        self.event(id, EventKind::Arrived);
    }

    fn oldest_is_starved(&self) -> bool {
        let oldest = self.state.running.oldest().and_then(|id| self.state.sequences.get(id));
        oldest.is_some_and(|seq| self.state.schedule - seq.last_served > MAX_PASSED_OVER)
    }

    /// Tells the policy what it has just decided.
    fn tell_policy(&mut self, plan: Option<&StepPlan>) {
        let Some(plan) = plan else { return };
        for &seq in &plan.preempted {
            self.event(seq, EventKind::Preempted);
        }
        for row in &plan.rows {
            if row.kind != RowKind::Continuing {
                self.event(row.seq, EventKind::Admitted);
            }
            self.event(row.seq, EventKind::Granted { num_tokens: row.num_tokens });
        }
    }

    pub(crate) fn event(&mut self, id: SeqId, kind: EventKind) {
        if let Some(seq) = self.state.view(id) {
            let rerank = self.policy.on_event(&SchedEvent { seq, kind });
            self.rerank(rerank);
        }
    }

    fn rerank(&mut self, rerank: Rerank) {
        match rerank {
            Rerank::None => {}
            Rerank::Seq(seq) => self.rank_anew(seq),
            Rerank::Class(class) => {
                let waiting: Vec<_> = self.state.waiting.of_class(class).collect();
                waiting.into_iter().for_each(|seq| self.rank_anew(seq));
            }
        }
    }

    fn rank_anew(&mut self, id: SeqId) {
        let State { sequences, waiting, running, cache, .. } = &mut self.state;
        let Some(seq) = sequences.get_mut(id) else { return };
        let view = SequenceView(seq, cache);
        let (class, rank) = (self.policy.class(&view), self.policy.rank(&view));
        match seq.status {
            SeqStatus::Running => {
                running.remove(seq);
                seq.rank = rank;
                running.insert(seq);
            }
            _ if !seq.holds.is_empty() => (seq.class, seq.rank) = (class, rank),
            _ => {
                waiting.remove(seq);
                (seq.class, seq.rank) = (class, rank);
                waiting.insert(seq);
            }
        }
    }
}

fn waiting_sequence(id: SeqId, new: NewSequence, max_output_tokens: u32) -> Sequence {
    let NewSequence { prompt, max_output_tokens: _, arrival, tenant, priority, salt, runs_ahead, hashes } =
        new;
    Sequence {
        id,
        arrival,
        tenant,
        priority,
        rank: Rank::default(),
        class: ClassId::ONE,
        status: SeqStatus::Waiting,
        epoch: Epoch::default(),
        num_prompt_tokens: prompt.len() as u32,
        tokens: prompt,
        max_output_tokens,
        runs_ahead,
        num_computed_tokens: 0,
        num_in_flight_tokens: 0,
        num_unread_tokens: 0,
        table: BlockTable::new(),
        swapped: None,
        transfer: None,
        hashes: hashes.filter(|hashes| hashes.salt() == salt).unwrap_or_else(|| BlockHashes::new(salt)),
        num_sent_blocks: 0,
        on_device: false,
        last_step: None,
        last_sampled: None,
        last_served: 0,
        planned_in: 0,
        num_cached_tokens: 0,
        num_preemptions: 0,
        first_admitted: None,
        served_tokens: 0,
        refusal: None,
        holds: Holds::default(),
        counted_as: None,
        counted_as_swapped: false,
        waits_since: arrival,
    }
}
