//! The checked builder of a step: the only way a policy acts.

use quire_kvcache::{Admit, BlockCopy, Growth, StepId, SwappedTable};

use crate::config::CapacityMode;
use crate::ids::{SeqId, Time};
use crate::plan::{InputToken, PlannedRow, ReplacedBlock, RowKind, StepPlan};
use crate::policy::PreemptionMode;
use crate::queue::ClassHeads;
use crate::refusal::Refusal;
use crate::running::{Only, Running};
use crate::sequence::{SeqStatus, Sequence, SequenceView};
use crate::state::State;

/// Builds the plan of one step. Every request is checked first and carried out then: a refusal leaves nothing half
/// done, and says why. The first refusal for want of blocks of a running sequence is remembered.
pub struct StepBuilder<'a> {
    pub(crate) state: &'a mut State,
    now: Time,
    token_budget: u32,
    rows: Vec<PlannedRow>,
    copies: Vec<BlockCopy>,
    is_short_of_blocks: bool,
}

impl<'a> StepBuilder<'a> {
    pub(crate) fn new(state: &'a mut State, now: Time) -> Self {
        let token_budget = state.config.max_num_batched_tokens;
        Self { state, now, token_budget, rows: Vec::new(), copies: Vec::new(), is_short_of_blocks: false }
    }

    /// The time the step is planned at.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The step being planned.
    pub fn step(&self) -> StepId {
        self.state.next_step
    }

    /// Tokens that can still be granted.
    pub fn token_budget(&self) -> u32 {
        self.token_budget
    }

    /// Rows planned so far.
    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Whether a running sequence has been refused for want of blocks in this step.
    pub fn is_short_of_blocks(&self) -> bool {
        self.is_short_of_blocks
    }

    /// An unfinished sequence.
    pub fn seq(&self, seq: SeqId) -> Option<SequenceView<'_>> {
        self.state.view(seq)
    }

    /// The running sequences, in the order of ranks.
    pub fn running(&self) -> Running<'_> {
        self.view(Only::All)
    }

    /// The running sequence at a place in the order of ranks.
    pub fn running_at(&self, place: usize) -> Option<SequenceView<'_>> {
        self.seq(self.state.running.get(place)?)
    }

    /// The running sequences that may give way to `needy`: not planned in this step, not the oldest, and ranking after
    /// `needy`, unless that is the oldest itself.
    pub fn victims_for(&self, needy: SeqId) -> Running<'_> {
        let needy_rank = self.state.sequences.get(needy).map_or_else(Default::default, |seq| seq.rank);
        let oldest = self.state.running.oldest().unwrap_or(needy);
        self.view(Only::Victims { needy, needy_rank, oldest, schedule: self.state.schedule })
    }

    /// The first waiting sequence of every class.
    pub fn heads(&self) -> ClassHeads<'_> {
        self.state.heads()
    }

    /// Lets a waiting sequence run: it gets blocks for all its known tokens at once, less those the prefix cache has.
    /// It computes nothing before it is granted tokens.
    ///
    /// # Errors
    /// A [`Refusal`], and nothing has changed.
    pub fn admit(&mut self, seq: SeqId) -> Result<(), Refusal> {
        let outcome = self.try_admit(seq);
        self.note(seq, outcome)
    }

    /// Whether [`admit`](Self::admit) would be granted now. Changes nothing, and is told to no observer.
    ///
    /// # Errors
    /// The [`Refusal`] that it would meet.
    pub fn check_admit(&mut self, seq: SeqId) -> Result<(), Refusal> {
        let headroom = self.headroom(seq);
        check_admit(self.state, seq, headroom, self.token_budget).map(drop)
    }

    /// Lets a running sequence compute up to `at_most` of its remaining tokens; fewer if the budget or
    /// `max_prefill_chunk` says so. Returns how many.
    ///
    /// # Errors
    /// A [`Refusal`], and nothing has changed.
    pub fn grant(&mut self, seq: SeqId, at_most: u32) -> Result<u32, Refusal> {
        let outcome = self.try_grant(seq, at_most);
        self.is_short_of_blocks |= matches!(outcome, Err(Refusal::NoBlocks(_)));
        self.note(seq, outcome)
    }

    /// Makes a running sequence give up its blocks, or move them to the host, and wait again, in its old place. Blocks
    /// that are moved come free when the device has moved them, not now.
    ///
    /// # Errors
    /// A [`Refusal`], and nothing has changed.
    pub fn preempt(&mut self, seq: SeqId, mode: PreemptionMode) -> Result<(), Refusal> {
        let victim = self.running_seq(seq)?;
        let (num_blocks, num_computed_tokens) = (victim.table.num_blocks(), victim.num_computed_tokens);
        if self.state.running.oldest() == Some(seq) {
            return Err(Refusal::Oldest);
        }
        match mode {
            PreemptionMode::Recompute => self.state.preempt(seq),
            PreemptionMode::Swap if num_computed_tokens == 0 => return Err(Refusal::NothingToSwap),
            PreemptionMode::Swap => self.state.swap_out(seq).map_err(Refusal::SwapFull)?,
        }
        let now = self.now;
        if let Some(victim) = self.state.sequences.get_mut(seq) {
            victim.waits_since = now;
        }
        let step = self.step();
        self.state.observe(seq, |observer, seq| observer.preempted(step, seq, mode, num_blocks));
        Ok(())
    }

    /// Makes a running sequence give way in the way that costs less by what has been measured, or that the
    /// configuration forces; by recompute where the swap space has no room.
    ///
    /// # Errors
    /// A [`Refusal`], and nothing has changed.
    pub fn give_way(&mut self, seq: SeqId) -> Result<PreemptionMode, Refusal> {
        let victim = self.running_seq(seq)?;
        let (mut mode, num_tokens) = (self.state.preemption_mode(victim), victim.num_computed_tokens);
        if mode == PreemptionMode::Recompute || self.preempt(seq, mode).is_err() {
            mode = PreemptionMode::Recompute;
            self.preempt(seq, mode)?;
        }
        if self.is_short_of_blocks {
            self.state.thrash.note_lost(num_tokens);
        }
        Ok(mode)
    }

    /// Brings a swapped sequence back: [`admit`](Self::admit) for one whose blocks are on the host. It can be granted
    /// tokens once they have arrived.
    ///
    /// # Errors
    /// A [`Refusal`], and nothing has changed.
    pub fn swap_in(&mut self, seq: SeqId) -> Result<(), Refusal> {
        match self.state.sequences.get(seq).map(|seq| seq.status) {
            Some(SeqStatus::Swapped) => self.admit(seq),
            Some(_) => Err(Refusal::NotSwapped),
            None => Err(Refusal::Unknown),
        }
    }

    /// Serves the oldest running sequence, whoever has to give way, or else the first that waits: what every step may
    /// fall back on, and why every sequence ends.
    pub(crate) fn serve_oldest(&mut self) {
        let Some(oldest) = self.state.running.oldest() else {
            let head = self.heads().first().map(|head| head.id());
            if let Some(head) = head.filter(|head| self.admit(*head).is_ok()) {
                let _ = self.grant(head, u32::MAX);
            }
            return;
        };
        while let Err(Refusal::NoBlocks(short)) = self.grant(oldest, u32::MAX) {
            let victim = self.victims_for(oldest).iter().next_back().map(|victim| victim.id());
            let Some(victim) = victim.filter(|_| short.need > short.available + short.retiring) else {
                return;
            };
            if self.give_way(victim).is_err() {
                return;
            }
        }
    }

    /// The plan, if there is anything to compute, or nothing to do but to wait for transfers.
    pub(crate) fn finish(self) -> Option<StepPlan> {
        let Self { state, rows, copies, .. } = self;
        let waits_for_transfers = state.open.is_empty() && state.has_transfers();
        if rows.is_empty() && !waits_for_transfers {
            return None;
        }
        let plan = StepPlan {
            step: state.next_step,
            num_tokens: rows.iter().map(|row| row.num_tokens).sum(),
            preempted: std::mem::take(&mut state.preempted),
            released: std::mem::take(&mut state.released),
            transfers: std::mem::take(&mut state.transfers),
            rows,
            copies,
        };
        state.open(&plan);
        Some(plan)
    }

    fn try_admit(&mut self, id: SeqId) -> Result<(), Refusal> {
        let (schedule, headroom) = (self.state.schedule, self.headroom(id));
        let (admit, swapped) = check_admit(self.state, id, headroom, self.token_budget)?;
        let (transfer, num_cached_tokens) = match swapped.take() {
            Some(swapped) => admit.commit_swapped(*swapped),
            None => (None, admit.commit()),
        };
        let seq = self.state.sequences.get_mut(id).ok_or(Refusal::Unknown)?;
        self.state.waiting.remove(seq);
        seq.status = SeqStatus::Running;
        seq.num_computed_tokens = num_cached_tokens;
        seq.transfer = transfer.as_ref().map(|transfer| transfer.id);
        seq.last_served = schedule;
        if seq.first_admitted.is_none() {
            (seq.first_admitted, seq.num_cached_tokens) = (Some(self.now), num_cached_tokens);
        }
        self.state.running.insert(seq);
        if let Some(transfer) = transfer {
            self.state.owners.insert(transfer.id, id);
            self.state.transfers.push(transfer);
        }
        let step = self.step();
        self.state.observe(id, |observer, seq| observer.allocated(step, seq, num_cached_tokens));
        Ok(())
    }

    /// Blocks that admission leaves to those that run. In the mode `Guaranteed`, what all need to run to their ends. Else one
    /// that has given way once leaves them a block each as well; one that has given way twice comes back when all can run
    /// to their ends, and while it runs nobody is admitted on less for whom it might have to give way: so nobody does so a third
    /// time for want of blocks.
    fn headroom(&self, id: SeqId) -> u32 {
        let State { config, running, sequences, cache, .. } = &*self.state;
        let Some(seq) = sequences.get(id).filter(|_| !running.is_empty()) else { return 0 };
        let capacity = cache.capacity();
        let growth = |seq: &Sequence| seq.growth(cache);
        let may_be_short = config.capacity_mode == CapacityMode::MaxUtilization && !running.would_tire(seq);
        let wanted = match seq.num_preemptions {
            0 if may_be_short => 0,
            1 if may_be_short => running.len() as u32,
            _ => {
                let all = running.ids().filter_map(|id| sequences.get(id)).map(growth);
                let own = growth(seq).saturating_sub(capacity.blocks_for(seq.num_tokens() + 1));
                all.fold(own, u32::saturating_add)
            }
        };
        wanted.max(capacity.watermark_blocks).min(capacity.num_blocks)
    }

    fn try_grant(&mut self, id: SeqId, at_most: u32) -> Result<u32, Refusal> {
        let seq = self.running_seq(id)?;
        let num_tokens = self.chunk(seq.num_remaining_tokens(), at_most)?;
        let (step, schedule, row) = (self.step(), self.state.schedule, self.rows.len() as u32);
        let seq = self.state.sequences.get_mut(id).ok_or(Refusal::Unknown)?;
        let start = seq.next_position();
        let reserved = self.state.cache.reserve(&mut seq.table, start..start + num_tokens);
        let growth = reserved.map_err(Refusal::NoBlocks)?.commit(step);
        self.copies.extend(growth.copies.iter().map(|copy| copy.copy));
        self.rows.push(plan_row(seq, num_tokens, &growth));
        self.token_budget -= num_tokens;
        seq.advance(num_tokens, step, row);
        (seq.planned_in, seq.last_served) = (schedule, schedule);
        let row = self.rows.last().expect("a row was just pushed");
        self.state.observe(id, |observer, seq| observer.scheduled(step, seq, row));
        Ok(num_tokens)
    }

    /// How many tokens a grant is of.
    fn chunk(&self, num_remaining_tokens: u32, at_most: u32) -> Result<u32, Refusal> {
        let config = &self.state.config;
        if at_most == 0 {
            return Err(Refusal::NoTokens);
        }
        if num_remaining_tokens == 0 {
            return Err(Refusal::AwaitsCommit);
        }
        let left = self.token_budget.min(at_most);
        let need = if config.enable_chunked_prefill { 1 } else { num_remaining_tokens };
        if need > left {
            return Err(Refusal::TokenBudget { need, left });
        }
        Ok(num_remaining_tokens.min(left).min(config.max_prefill_chunk.unwrap_or(u32::MAX)))
    }

    /// A running sequence on which nothing has been decided in this step.
    fn running_seq(&self, id: SeqId) -> Result<&Sequence, Refusal> {
        let seq = self.state.sequences.get(id).ok_or(Refusal::Unknown)?;
        match seq.status {
            SeqStatus::Running if seq.transfer.is_some() => Err(Refusal::SwapInFlight),
            SeqStatus::Running if seq.planned_in == self.state.schedule => Err(Refusal::AlreadyPlanned),
            SeqStatus::Running => Ok(seq),
            _ => Err(Refusal::NotRunning),
        }
    }

    fn note<T>(&mut self, id: SeqId, outcome: Result<T, Refusal>) -> Result<T, Refusal> {
        let refusal = outcome.as_ref().err().copied();
        if let Some(seq) = self.state.sequences.get_mut(id) {
            seq.refusal = refusal;
            self.state.refused.recount(seq);
        }
        if let Some(refusal) = refusal {
            let step = self.step();
            self.state.observe(id, |observer, seq| observer.refused(step, seq, refusal));
        }
        outcome
    }

    fn view(&self, only: Only) -> Running<'_> {
        let State { running, sequences, cache, .. } = &*self.state;
        Running { set: running, sequences, cache, only }
    }
}

/// The first half of an admission: what would be refused is, and nothing has changed.
fn check_admit(
    state: &mut State,
    id: SeqId,
    headroom: u32,
    token_budget: u32,
) -> Result<(Admit<'_>, &mut Option<Box<SwappedTable>>), Refusal> {
    let num_partial = state.num_partial_prefills();
    let State { config, sequences, cache, running, schedule, thrash, .. } = state;
    let seq = sequences.get_mut(id).ok_or(Refusal::Unknown)?;
    if !seq.is_queued() {
        return Err(Refusal::NotWaiting);
    }
    if let Some(reason) = seq.holds.first() {
        return Err(Refusal::Held(reason));
    }
    if seq.planned_in == *schedule {
        return Err(Refusal::AlreadyPlanned);
    }
    if seq.transfer.is_some() {
        return Err(Refusal::SwapInFlight);
    }
    let limit = config.max_num_seqs;
    if running.len() >= limit as usize {
        return Err(Refusal::SeqLimit { limit });
    }
    if let Some(limit) = thrash.limit().filter(|limit| running.len() >= *limit as usize) {
        return Err(Refusal::Thrashing { limit });
    }
    let num_tokens = seq.num_tokens();
    let need = if config.enable_chunked_prefill { 1 } else { num_tokens };
    if need > token_budget {
        return Err(Refusal::TokenBudget { need, left: token_budget });
    }
    let Sequence { table, tokens, hashes, swapped, .. } = seq;
    let admit = cache.admit(table, tokens, hashes, headroom).map_err(Refusal::NoBlocks)?;
    let num_ready = swapped.as_ref().map_or(0, |swapped| swapped.num_tokens()).max(admit.num_cached_tokens());
    let chunk = token_budget.min(config.max_prefill_chunk.unwrap_or(u32::MAX));
    match (config.max_num_partial_prefills, num_partial) {
        (Some(limit), Some(num_partial)) if num_partial >= limit && num_tokens - num_ready > chunk => {
            Err(Refusal::PartialPrefills { limit })
        }
        _ => Ok((admit, swapped)),
    }
}

/// The row of a sequence whose table has grown for it.
fn plan_row(seq: &mut Sequence, num_tokens: u32, growth: &Growth) -> PlannedRow {
    let kind = match (seq.on_device, seq.num_preemptions) {
        (true, _) => RowKind::Continuing,
        (false, 0) => RowKind::New,
        (false, _) => RowKind::Resumed,
    };
    let replaced = growth.copies.iter().filter(|copy| (copy.table_idx as usize) < seq.num_sent_blocks);
    let start = seq.next_position();
    let input = match seq.last_sampled {
        Some((step, row)) if start >= seq.num_tokens() => InputToken::Sampled { step, row },
        _ => InputToken::Known,
    };
    let row = PlannedRow {
        seq: seq.id,
        epoch: seq.epoch,
        kind,
        start,
        num_tokens,
        num_draft_tokens: 0,
        input,
        samples: num_tokens == seq.num_remaining_tokens(),
        new_blocks: seq.table.blocks()[seq.num_sent_blocks..].to_vec(),
        replaced_blocks: replaced
            .map(|copy| ReplacedBlock { table_idx: copy.table_idx, block: copy.copy.dst })
            .collect(),
    };
    (seq.num_sent_blocks, seq.on_device) = (seq.table.blocks().len(), true);
    row
}
