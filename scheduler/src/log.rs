//! Decisions as lines of the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_kvcache::StepId;

use crate::hold::HoldReason;
use crate::ids::{SeqId, Time};
use crate::observer::StepObserver;
use crate::plan::PlannedRow;
use crate::policy::PreemptionMode;
use crate::refusal::Refusal;
use crate::sequence::{FinishReason, SeqStatus, SequenceView};

/// The target of the lines: `quire::schedule=debug` shows them alone.
const TARGET: &str = "quire::schedule";

/// The target of what an operator should know without having asked.
const WARNINGS: &str = "quire::scheduler";

/// Writes every decision as a line of the log, target `quire::schedule`, level `debug`:
///
/// ```text
/// [schedule] step=7 seq_id=3 state=prefill block_num=12 tokens=128 reason=granted
/// ```
///
/// `block_num` is what the sequence holds after the decision, `tokens` what the decision is about. That admission is
/// lowered after preemptions is told at level `warn`, target `quire::scheduler`.
#[derive(Clone, Debug, Default)]
pub struct LogObserver {
    filter: LogFilter,
}

/// Whose decisions are written: everybody's at first, or one sequence's. It may be changed while the scheduler runs,
/// from any thread.
#[derive(Clone, Debug, Default)]
pub struct LogFilter(Arc<AtomicU64>);

impl LogFilter {
    /// Writes the decisions on one sequence only, or on all again.
    pub fn only(&self, seq: Option<SeqId>) {
        // 0 is everybody.
        self.0.store(seq.map_or(0, |seq| seq.0 + 1), Ordering::Relaxed);
    }

    fn shows(&self, seq: SeqId) -> bool {
        matches!(self.0.load(Ordering::Relaxed), only if only == 0 || only == seq.0 + 1)
    }
}

impl LogObserver {
    /// One whose filter is kept elsewhere, too.
    pub fn new(filter: LogFilter) -> Self {
        Self { filter }
    }

    fn write(
        &self,
        step: Option<StepId>,
        seq: SequenceView<'_>,
        state: &str,
        tokens: u32,
        reason: &dyn std::fmt::Display,
    ) {
        if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) || !self.filter.shows(seq.id()) {
            return;
        }
        let (id, blocks) = (seq.id(), seq.num_blocks());
        let step = step.map_or_else(|| "-".to_owned(), |step| step.to_string());
        tracing::debug!(
            target: TARGET,
            "[schedule] step={step} seq_id={id} state={state} block_num={blocks} tokens={tokens} reason={reason}"
        );
    }
}

impl StepObserver for LogObserver {
    fn arrived(&mut self, seq: SequenceView<'_>, _now: Time) {
        self.write(None, seq, "waiting", seq.num_tokens(), &"arrived");
    }

    fn held(&mut self, seq: SequenceView<'_>, reason: HoldReason) {
        self.write(None, seq, "held", 0, &reason);
    }

    fn released(&mut self, seq: SequenceView<'_>, reason: HoldReason) {
        self.write(None, seq, "released", 0, &format_args!("no longer held: {reason}"));
    }

    fn refused(&mut self, step: StepId, seq: SequenceView<'_>, refusal: Refusal) {
        let state = match seq.status() {
            SeqStatus::Running => "running",
            SeqStatus::Swapped => "swapped",
            _ => "waiting",
        };
        self.write(Some(step), seq, state, 0, &refusal);
    }

    fn allocated(&mut self, step: StepId, seq: SequenceView<'_>, num_cached_tokens: u32) {
        self.write(Some(step), seq, "allocated", num_cached_tokens, &"cached");
    }

    fn scheduled(&mut self, step: StepId, seq: SequenceView<'_>, row: &PlannedRow) {
        let state = if row.start < seq.num_prompt_tokens() { "prefill" } else { "decode" };
        self.write(Some(step), seq, state, row.num_tokens, &"granted");
    }

    fn preempted(&mut self, step: StepId, seq: SequenceView<'_>, how: PreemptionMode, num_blocks: u32) {
        let how = if how == PreemptionMode::Swap { "swap" } else { "recompute" };
        let reason = format_args!("{how} of {num_blocks} blocks");
        self.write(Some(step), seq, "preempted", seq.num_tokens(), &reason);
    }

    fn transferred(&mut self, seq: SequenceView<'_>) {
        let reason = if seq.status() == SeqStatus::Swapped { "swapped out" } else { "swapped in" };
        self.write(None, seq, "transferred", seq.num_computed_tokens(), &reason);
    }

    fn admission_limited(&mut self, step: StepId, limit: Option<u32>) {
        match limit {
            Some(limit) => tracing::warn!(
                target: WARNINGS,
                step = step.0,
                "preemptions throw away more than a quarter of the work: at most {limit} sequences run for now; a larger \
                 pool, a smaller max_num_seqs or capacity_mode = guaranteed prevents it"
            ),
            None => tracing::info!(target: WARNINGS, step = step.0, "admission is no longer lowered"),
        }
    }

    fn finished(&mut self, seq: SequenceView<'_>, reason: FinishReason) {
        self.write(None, seq, "finished", seq.num_tokens(), &format_args!("{reason:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_switched_while_others_hold_it() {
        let filter = LogFilter::default();
        let held = LogObserver::new(filter.clone());
        assert!(held.filter.shows(SeqId(0)) && held.filter.shows(SeqId(7)));
        filter.only(Some(SeqId(0)));
        assert!(held.filter.shows(SeqId(0)) && !held.filter.shows(SeqId(7)));
        filter.only(None);
        assert!(held.filter.shows(SeqId(7)));
    }
}
