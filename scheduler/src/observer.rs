//! Who sees every decision.

use quire_kvcache::StepId;

use crate::ids::Time;
use crate::plan::PlannedRow;
use crate::refusal::Refusal;
use crate::sequence::{FinishReason, SequenceView};

/// Sees every decision as it is made: the place for logs, metrics, traces and live pages. All methods do nothing by
/// default. They are called on the scheduler's thread, and cost a step what they cost.
pub trait StepObserver: Send {
    /// A sequence was added, and waits.
    fn arrived(&mut self, seq: SequenceView<'_>, now: Time) {
        let _ = (seq, now);
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

    /// A running sequence gave way; `num_blocks` were given up.
    fn preempted(&mut self, step: StepId, seq: SequenceView<'_>, num_blocks: u32) {
        let _ = (step, seq, num_blocks);
    }

    /// A sequence ended.
    fn finished(&mut self, seq: SequenceView<'_>, reason: FinishReason) {
        let _ = (seq, reason);
    }
}

/// Writes every decision as a line of the log, target `quire::scheduler`, level `debug`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogObserver;

const TARGET: &str = "quire::scheduler";

impl StepObserver for LogObserver {
    fn arrived(&mut self, seq: SequenceView<'_>, _now: Time) {
        let (id, tokens) = (seq.id(), seq.num_tokens());
        tracing::debug!(target: TARGET, "[schedule] seq_id={id} state=waiting block_num=0 tokens={tokens}");
    }

    fn refused(&mut self, step: StepId, seq: SequenceView<'_>, refusal: Refusal) {
        let (id, blocks) = (seq.id(), seq.num_blocks());
        tracing::debug!(
            target: TARGET,
            "[schedule] step={step} seq_id={id} state=refused block_num={blocks} reason={refusal}"
        );
    }

    fn allocated(&mut self, step: StepId, seq: SequenceView<'_>, num_cached_tokens: u32) {
        let (id, blocks) = (seq.id(), seq.num_blocks());
        tracing::debug!(
            target: TARGET,
            "[schedule] step={step} seq_id={id} state=allocated block_num={blocks} cached={num_cached_tokens}"
        );
    }

    fn scheduled(&mut self, step: StepId, seq: SequenceView<'_>, row: &PlannedRow) {
        let (id, blocks, tokens) = (seq.id(), seq.num_blocks(), row.num_tokens);
        let state = if row.start < seq.num_prompt_tokens() { "prefill" } else { "decode" };
        tracing::debug!(
            target: TARGET,
            "[schedule] step={step} seq_id={id} state={state} block_num={blocks} tokens={tokens}"
        );
    }

    fn preempted(&mut self, step: StepId, seq: SequenceView<'_>, num_blocks: u32) {
        let id = seq.id();
        tracing::debug!(target: TARGET, "[schedule] step={step} seq_id={id} state=preempted block_num={num_blocks}");
    }

    fn finished(&mut self, seq: SequenceView<'_>, reason: FinishReason) {
        let (id, tokens) = (seq.id(), seq.num_tokens());
        tracing::debug!(target: TARGET, "[schedule] seq_id={id} state=finished block_num=0 tokens={tokens} reason={reason:?}");
    }
}
