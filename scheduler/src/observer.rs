//! Who sees every decision.

use quire_kvcache::StepId;

use crate::hold::HoldReason;
use crate::ids::Time;
use crate::plan::PlannedRow;
use crate::policy::PreemptionMode;
use crate::refusal::Refusal;
use crate::sequence::{FinishReason, SequenceView};

/// Sees every decision as it is made: the place for logs, metrics, traces and live pages. All methods do nothing by
/// default. They are called on the scheduler's thread, and cost a step what they cost.
pub trait StepObserver: Send {
    /// A sequence was added, and waits.
    fn arrived(&mut self, seq: SequenceView<'_>, now: Time) {
        let _ = (seq, now);
    }

    /// A waiting sequence is held: it cannot run before it is released.
    fn held(&mut self, seq: SequenceView<'_>, reason: HoldReason) {
        let _ = (seq, reason);
    }

    /// A hold has ended. With the last of them, [`SequenceView::held_for`] is empty.
    fn released(&mut self, seq: SequenceView<'_>, reason: HoldReason) {
        let _ = (seq, reason);
    }

    /// A sequence asked for something in this step and did not get it.
    fn refused(&mut self, step: StepId, seq: SequenceView<'_>, refusal: Refusal) {
        let _ = (step, seq, refusal);
    }

    /// A waiting sequence was given blocks for all its tokens, and runs.
    fn allocated(&mut self, step: StepId, seq: SequenceView<'_>, num_cached_tokens: u32) {
        let _ = (step, seq, num_cached_tokens);
    }

    /// A row was planned.
    fn scheduled(&mut self, step: StepId, seq: SequenceView<'_>, row: &PlannedRow) {
        let _ = (step, seq, row);
    }

    /// A running sequence gave way; `num_blocks` were given up, or are moved to the host.
    fn preempted(&mut self, step: StepId, seq: SequenceView<'_>, how: PreemptionMode, num_blocks: u32) {
        let _ = (step, seq, how, num_blocks);
    }

    /// The blocks of a sequence have arrived: on the host, if it is swapped, or on the device.
    fn transferred(&mut self, seq: SequenceView<'_>) {
        let _ = seq;
    }

    /// So many sequences may run for now, since too much work was lost to preemptions; `None` ends that.
    fn admission_limited(&mut self, step: StepId, limit: Option<u32>) {
        let _ = (step, limit);
    }

    /// A sequence ended.
    fn finished(&mut self, seq: SequenceView<'_>, reason: FinishReason) {
        let _ = (seq, reason);
    }
}
