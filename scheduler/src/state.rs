//! What the scheduler keeps, and the transitions of a sequence that change more than one part of it.

use std::collections::{BTreeMap, VecDeque};

use quire_kvcache::{KvCacheManager, StepId, SwapFull, Transfer, TransferId};

use crate::config::SchedulerConfig;
use crate::error::CommitError;
use crate::explain::WaitCounts;
use crate::ids::{Epoch, SeqId};
use crate::observer::StepObserver;
use crate::plan::{PlannedRow, StepPlan};
use crate::preemption::Rates;
use crate::queue::{ClassHeads, Waiting};
use crate::running::RunningSet;
use crate::sequence::{FinishReason, SeqStatus, Sequence, SequenceView};
use crate::slots::Sequences;
use crate::thrash::ThrashGuard;

/// A step that has been planned and not committed.
#[derive(Clone, Debug)]
pub(crate) struct OpenStep {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<OpenRow>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRow {
    pub(crate) seq: SeqId,
    pub(crate) epoch: Epoch,
    pub(crate) num_tokens: u32,
    pub(crate) samples: bool,
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) num_steps: u64,
    pub(crate) num_scheduled_tokens: u64,
    pub(crate) num_preemptions: u64,
    /// Those of them that were swaps.
    pub(crate) num_swaps: u64,
}

pub(crate) struct State {
    pub(crate) config: SchedulerConfig,
    pub(crate) cache: KvCacheManager,
    pub(crate) sequences: Sequences,
    pub(crate) waiting: Waiting,
    /// Sequences that wait outside of the queues: see [`Scheduler::hold`](crate::Scheduler::hold).
    pub(crate) num_held: usize,
    pub(crate) running: RunningSet,
    pub(crate) open: VecDeque<OpenStep>,
    pub(crate) next_step: StepId,
    /// The number of `schedule` calls: it tells what happened in the present one.
    pub(crate) schedule: u64,
    /// Since the last plan: see [`StepPlan`].
    pub(crate) released: Vec<SeqId>,
    pub(crate) preempted: Vec<SeqId>,
    pub(crate) transfers: Vec<Transfer>,
    /// Whose transfers are open.
    pub(crate) owners: BTreeMap<TransferId, SeqId>,
    pub(crate) rates: Option<Rates>,
    /// Of those that wait, how many were refused and why.
    pub(crate) refused: WaitCounts,
    pub(crate) thrash: ThrashGuard,
    pub(crate) counters: Counters,
    pub(crate) observers: Vec<Box<dyn StepObserver>>,
}

impl State {
    /// An unfinished sequence, as others may see it.
    pub(crate) fn view(&self, id: SeqId) -> Option<SequenceView<'_>> {
        self.sequences.get(id).map(|seq| SequenceView(seq, &self.cache))
    }

    /// The first waiting sequence of every class.
    pub(crate) fn heads(&self) -> ClassHeads<'_> {
        ClassHeads { waiting: &self.waiting, sequences: &self.sequences, cache: &self.cache }
    }

    /// Running sequences whose prompt is computed in part; `None` where no limit asks.
    pub(crate) fn num_partial_prefills(&self) -> Option<u32> {
        self.config.max_num_partial_prefills?;
        let running = self.running.ids().filter_map(|id| self.sequences.get(id));
        Some(
            running
                .filter(|seq| seq.next_position() < seq.num_tokens() && seq.num_remaining_tokens() > 1)
                .count() as u32,
        )
    }

    pub(crate) fn is_open(&self, step: StepId) -> bool {
        self.open.iter().any(|open| open.id == step)
    }

    pub(crate) fn observe(
        &mut self,
        id: SeqId,
        mut tell: impl FnMut(&mut dyn StepObserver, SequenceView<'_>),
    ) {
        if let Some(seq) = self.sequences.get(id) {
            let view = SequenceView(seq, &self.cache);
            self.observers.iter_mut().for_each(|observer| tell(observer.as_mut(), view));
        }
    }

    /// Takes a running sequence's blocks and queues it again; its rank, and so its place, are kept.
    pub(crate) fn preempt(&mut self, id: SeqId) {
        self.give_up_device(id);
        let seq = self.sequences.get_mut(id).expect("the caller has seen the sequence");
        self.running.remove(seq);
        seq.start_over();
        seq.status = SeqStatus::Waiting;
        self.queue_again(id);
    }

    /// Moves a running sequence's blocks to the host and queues it again. What is in flight is dropped, as with a
    /// recompute: it lies behind the computed tokens, and is not among what is moved.
    pub(crate) fn swap_out(&mut self, id: SeqId) -> Result<(), SwapFull> {
        let seq = self.sequences.get_mut(id).expect("the caller has seen the sequence");
        let num_computed_tokens = seq.num_computed_tokens;
        let until = seq.last_step.filter(|step| self.open.iter().any(|open| open.id == *step));
        let (transfer, swapped) = self.cache.swap_out(&mut seq.table, num_computed_tokens, until)?;
        if seq.on_device {
            self.released.push(id);
        }
        self.running.remove(seq);
        seq.start_over();
        (seq.status, seq.num_computed_tokens) = (SeqStatus::Swapped, num_computed_tokens);
        (seq.swapped, seq.transfer) = (Some(Box::new(swapped)), Some(transfer.id));
        self.owners.insert(transfer.id, id);
        self.transfers.push(transfer);
        self.counters.num_swaps += 1;
        self.queue_again(id);
        Ok(())
    }

    fn queue_again(&mut self, id: SeqId) {
        let seq = self.sequences.get_mut(id).expect("the caller has seen the sequence");
        (seq.planned_in, seq.refusal) = (self.schedule, None);
        seq.num_preemptions += 1;
        self.refused.recount(seq);
        self.waiting.insert(seq);
        self.preempted.push(id);
        self.counters.num_preemptions += 1;
    }

    /// Ends a sequence, in whatever state it is.
    pub(crate) fn end(&mut self, id: SeqId, reason: FinishReason) -> Option<Sequence> {
        self.sequences.get(id)?;
        self.give_up_device(id);
        let mut seq = self.sequences.remove(id)?;
        match seq.status {
            SeqStatus::Waiting | SeqStatus::Swapped if !seq.holds.is_empty() => self.num_held -= 1,
            SeqStatus::Waiting | SeqStatus::Swapped => self.waiting.remove(&seq),
            SeqStatus::Running => self.running.remove(&seq),
            SeqStatus::Finished(_) => unreachable!("no kept sequence is in such a state"),
        }
        seq.status = SeqStatus::Finished(reason);
        self.refused.recount(&mut seq);
        let view = SequenceView(&seq, &self.cache);
        self.observers.iter_mut().for_each(|observer| observer.finished(view, reason));
        Some(seq)
    }

    /// Gives up blocks, on the device and on the host, and the device's row. Blocks that an open step may touch are
    /// retiring until its commit, those that a transfer may touch live until that is done.
    fn give_up_device(&mut self, id: SeqId) {
        let Some(seq) = self.sequences.get_mut(id) else { return };
        let (table, last_step) = (std::mem::take(&mut seq.table), seq.last_step);
        let (swapped, transfer) = (seq.swapped.take(), seq.transfer.take());
        if std::mem::take(&mut seq.on_device) {
            self.released.push(id);
        }
        match (swapped, transfer) {
            (Some(swapped), transfer) => self.cache.drop_swapped(*swapped, transfer),
            (None, Some(transfer)) => self.cache.drop_swapping_in(table, transfer),
            (None, None) => {
                let until = last_step.filter(|step| self.is_open(*step));
                self.cache.release(table, until);
            }
        }
    }

    /// Whether blocks are on their way to or from the host.
    pub(crate) fn has_transfers(&self) -> bool {
        self.cache.swap_usage().num_transfers > 0
    }

    pub(crate) fn finish_transfer(&mut self, id: TransferId) -> Result<(), CommitError> {
        let Self { cache, open, .. } = self;
        if !cache.finish_transfer(id, |step| open.iter().any(|open| open.id == step)) {
            return Err(CommitError::UnknownTransfer(id));
        }
        let Some(owner) = self.owners.remove(&id) else { return Ok(()) };
        if let Some(seq) = self.sequences.get_mut(owner).filter(|seq| seq.transfer == Some(id)) {
            seq.transfer = None;
            self.observe(owner, |observer, seq| observer.transferred(seq));
        }
        Ok(())
    }

    /// After a reset of the device: nothing is on its way any more, and what lay on the host is given up.
    pub(crate) fn fail_transfers(&mut self) {
        let swapped: Vec<_> =
            self.sequences.iter().filter(|seq| seq.status == SeqStatus::Swapped).map(|seq| seq.id).collect();
        for id in swapped {
            self.give_up_device(id);
            let seq = self.sequences.get_mut(id).expect("it was just listed");
            (seq.status, seq.num_computed_tokens) = (SeqStatus::Waiting, 0);
            self.refused.recount(seq);
        }
        self.transfers.clear();
        self.owners.clear();
        self.cache.fail_transfers();
    }

    /// Counts a step that was planned, or was not.
    pub(crate) fn note_step(&mut self, plan: Option<&StepPlan>) {
        let Some(plan) = plan.filter(|plan| !plan.rows.is_empty()) else { return };
        let (num_running, max_num_seqs) = (self.running.len() as u32, self.config.max_num_seqs);
        if self.thrash.note_step(plan.num_tokens, num_running, max_num_seqs) {
            let limit = self.thrash.limit();
            self.observers.iter_mut().for_each(|observer| observer.admission_limited(plan.step, limit));
        }
    }

    /// Records a finished plan as open.
    pub(crate) fn open(&mut self, plan: &StepPlan) {
        let row = |row: &PlannedRow| OpenRow {
            seq: row.seq,
            epoch: row.epoch,
            num_tokens: row.num_tokens,
            samples: row.samples,
        };
        self.open.push_back(OpenStep { id: plan.step, rows: plan.rows.iter().map(row).collect() });
        self.next_step = plan.step.next();
        self.counters.num_steps += 1;
        self.counters.num_scheduled_tokens += u64::from(plan.num_tokens);
    }

    /// All that a reader needs to see why a step could not be planned.
    pub(crate) fn dump(&self) -> String {
        use std::fmt::Write as _;
        let mut dump = format!("config: {:?}\nblocks: {:?}\n", self.config, self.cache.usage());
        let (num_waiting, num_held, num_running) = (self.waiting.len(), self.num_held, self.running.len());
        let _ = writeln!(dump, "waiting: {num_waiting}, held: {num_held}, running: {num_running}");
        let listed =
            self.sequences.iter().filter(|seq| seq.status == SeqStatus::Running || seq.refusal.is_some());
        for seq in listed {
            let _ = writeln!(
                dump,
                "seq {}: {:?}, {} tokens, {} computed, {} in flight, {} blocks, last refusal: {:?}",
                seq.id,
                seq.status,
                seq.num_tokens(),
                seq.num_computed_tokens,
                seq.num_in_flight_tokens,
                seq.table.num_blocks(),
                seq.refusal
            );
        }
        dump
    }
}
