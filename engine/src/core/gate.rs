//! Gated rows: what they may choose hangs on their last token, so that the device is told while it computes the next.

use quire_executor::{RowId, RowMask, StepBatch, TokenMasks};
use quire_scheduler::{Epoch, SeqId, StepPlan};

use super::engine_core::EngineCore;
use crate::Result;
use crate::frontend::guarded;

/// A row of an open step that waits for its mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatedRow {
    row: RowId,
    seq: SeqId,
    epoch: Epoch,
}

impl GatedRow {
    /// The gated rows of a step.
    pub(super) fn of(plan: &StepPlan, batch: &StepBatch) -> Vec<Self> {
        let rows = plan.rows.iter().zip(&batch.rows).filter(|(_, row)| row.gated);
        rows.map(|(planned, row)| Self { row: row.row, seq: planned.seq, epoch: planned.epoch }).collect()
    }
}

impl EngineCore {
    /// Tells the device what the gated rows of the oldest open step may choose: with the steps before it committed, their
    /// last tokens are known. To be called whenever another step has become the oldest.
    pub(super) fn provide_masks(&mut self) -> Result<()> {
        let Some(open) = self.open.front_mut() else { return Ok(()) };
        let gated = std::mem::take(&mut open.gated);
        if gated.is_empty() {
            return Ok(());
        }
        let rows = gated.into_iter().filter_map(|gated| Some((gated.row, self.mask(gated)?))).collect();
        match self.open.front() {
            Some(open) => Ok(self.executor.provide_masks(&open.ticket, TokenMasks { rows })?),
            None => Ok(()),
        }
    }

    /// What a row may choose; `None` is everything, or that nobody will look. A request of which that cannot be said fails.
    fn mask(&mut self, GatedRow { seq, epoch, .. }: GatedRow) -> Option<RowMask> {
        if !self.scheduler.view().is_current(seq, epoch) {
            return None;
        }
        let request = self.requests.get_mut(seq)?;
        let output = &self.scheduler.view().tokens(seq)[request.num_prompt_tokens as usize..];
        guarded("finding what may follow", || request.mask(seq, output)).unwrap_or_else(|error| {
            self.fail([seq], &error);
            None
        })
    }
}
