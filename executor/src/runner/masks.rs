//! The masks of rows, on their way to the device: those that a row keeps, and those of one step.

use quire_kernels::{Result, StepCtx, Tensor};

use crate::mask::{RowMask, TokenMask, TokenMasks};
use crate::{RowId, RowSampling};

/// What the device's mask of each row place holds, and what it should.
#[derive(Debug)]
pub(super) struct RowMasks {
    vocab_size: usize,
    /// The masks that rows keep (`allowed_token_ids`).
    kept: Vec<Option<TokenMask>>,
    /// Whether the device has the mask that a row keeps.
    holds_kept: Vec<bool>,
}

/// What is forbidden to the rows of one step.
#[derive(Debug, Default)]
pub(super) struct StepMasks {
    /// Row places whose mask on the device counts.
    masked: Vec<RowId>,
    /// Single tokens.
    forbidden: Vec<(RowId, Vec<u32>)>,
}

impl RowMasks {
    pub(super) fn new(max_num_seqs: usize, vocab_size: usize) -> Self {
        Self { vocab_size, kept: vec![None; max_num_seqs], holds_kept: vec![false; max_num_seqs] }
    }

    /// A row starts, or starts again.
    pub(super) fn add(&mut self, row: RowId, sampling: &RowSampling) {
        let slot = row.0 as usize;
        let allowed = sampling.allowed_token_ids.as_ref();
        self.kept[slot] = allowed.map(|ids| TokenMask::of(self.vocab_size, ids.iter().copied()));
        self.holds_kept[slot] = false;
    }

    /// Brings the device's masks (`[max_num_seqs, words]`) of the rows that sample up to date.
    pub(super) fn send(
        &mut self,
        ctx: &mut StepCtx,
        device: &Tensor,
        sampled: &[RowId],
        masks: TokenMasks,
    ) -> Result<StepMasks> {
        let mut step = StepMasks::default();
        let mut sent: Vec<(RowId, TokenMask)> = Vec::new();
        for (row, mask) in masks.rows {
            match mask {
                RowMask::Only(mask) => sent.push((row, self.within_kept(row, mask))),
                RowMask::AllBut(tokens) => step.forbidden.push((row, tokens)),
            }
        }
        let mut gated: Vec<RowId> = sent.iter().map(|&(row, _)| row).collect();
        gated.sort_unstable();
        for &row in sampled.iter().filter(|row| gated.binary_search(row).is_err()) {
            let slot = row.0 as usize;
            let Some(kept) = &self.kept[slot] else { continue };
            step.masked.push(row);
            if !std::mem::replace(&mut self.holds_kept[slot], true) {
                sent.push((row, kept.clone()));
            }
        }
        sent.sort_unstable_by_key(|&(row, _)| row);
        step.masked.extend(gated);
        // Neighbours go together.
        for run in sent.chunk_by(|a, b| a.0.0 + 1 == b.0.0) {
            let words: Vec<u32> = run.iter().flat_map(|(_, mask)| mask.words()).copied().collect();
            let first = run[0].0.0 as usize;
            ctx.write(&device.rows(first, first + run.len()), &words)?;
        }
        step.masked.sort_unstable();
        Ok(step)
    }

    /// A mask for one step takes the place of the one that the row keeps.
    fn within_kept(&mut self, row: RowId, mut mask: TokenMask) -> TokenMask {
        let slot = row.0 as usize;
        self.holds_kept[slot] = false;
        if let Some(kept) = &self.kept[slot] {
            mask.intersect(kept);
        }
        mask
    }
}

impl StepMasks {
    /// Whether any row's mask counts.
    pub(super) fn is_any_masked(&self) -> bool {
        !self.masked.is_empty()
    }

    /// Whether the mask of that row counts.
    pub(super) fn is_masked(&self, row: RowId) -> bool {
        self.masked.binary_search(&row).is_ok()
    }

    /// Single tokens that are forbidden to a row.
    pub(super) fn forbidden(&self, row: RowId) -> &[u32] {
        self.forbidden.iter().find(|(of, _)| *of == row).map_or(&[], |(_, tokens)| tokens)
    }
}
