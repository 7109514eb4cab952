//! The rows as the host knows them, and the checks that a batch passes before the device sees it.

use std::collections::BTreeSet;
use std::ops::Range;

use quire_kernels::mask_words;

use crate::{
    AddedRow, BatchError, DeviceCapacity, PlannedRow, ProcessorCall, RowId, RowMask, RowSampling, StepBatch,
    TokenMasks,
};

/// The host's side of a row.
#[derive(Debug)]
pub(crate) struct Row {
    /// Tells apart the sequences that held the same place one after the other.
    pub(crate) serial: u64,
    pub(crate) epoch: u32,
    /// The ids that came with the row; dropped when all of them are computed.
    known: Vec<u32>,
    num_known: usize,
    /// Tokens sampled since, of which the host has seen none, some or all.
    num_sampled: usize,
    pub(crate) num_prompt_tokens: usize,
    pub(crate) num_computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// How often places of the table were given another block: a table of the same length may be another one.
    pub(crate) num_replacements: u64,
    pub(crate) sampling: RowSampling,
}

impl Row {
    /// Tokens that the sequence has, those included that only the device knows.
    pub(crate) fn num_tokens(&self) -> usize {
        self.num_known + self.num_sampled
    }

    /// The id at `position`, where the host knows it.
    pub(crate) fn known_id(&self, position: usize) -> Option<u32> {
        self.known.get(position).copied()
    }

    /// All ids that came with the row, until they are computed.
    pub(crate) fn known_ids(&self) -> &[u32] {
        &self.known
    }

    /// The positions of a step whose logits are asked for because they predict a prompt token.
    pub(crate) fn predicting_positions(&self, step: &RowStep) -> Range<usize> {
        let end = step.end().min(self.num_prompt_tokens.saturating_sub(1)).max(step.start);
        match self.sampling.prompt_logprobs {
            Some(_) => step.start..end,
            None => step.start..step.start,
        }
    }
}

/// What one row computes in a step, after the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowStep {
    pub(crate) row: RowId,
    pub(crate) epoch: u32,
    /// Position of the first token computed.
    pub(crate) start: usize,
    pub(crate) num_tokens: usize,
    pub(crate) sample: bool,
    /// Its choice waits for a mask.
    pub(crate) gated: bool,
    /// The input is the token sampled last, which lies on the device: then it is the only one.
    pub(crate) from_device: bool,
}

impl RowStep {
    /// One past the last position computed: where a sampled token will stand.
    pub(crate) fn end(&self) -> usize {
        self.start + self.num_tokens
    }
}

/// All rows of a device.
#[derive(Debug)]
pub(crate) struct RowTable {
    rows: Vec<Option<Row>>,
    capacity: DeviceCapacity,
    max_logprobs: u32,
    num_processors: usize,
    last_step: Option<u64>,
    num_added: u64,
}

impl RowTable {
    pub(crate) fn new(capacity: DeviceCapacity, max_logprobs: u32) -> Self {
        let rows = (0..capacity.max_num_seqs).map(|_| None).collect();
        Self { rows, capacity, max_logprobs, num_processors: 0, last_step: None, num_added: 0 }
    }

    /// The table of a device with so many logits processors.
    pub(crate) fn with_processors(self, num_processors: usize) -> Self {
        Self { num_processors, ..self }
    }

    /// A row that is there.
    pub(crate) fn get(&self, row: RowId) -> Result<&Row, BatchError> {
        let slot = self.rows.get(row.0 as usize).ok_or_else(|| self.row_range(row))?;
        slot.as_ref().ok_or(BatchError::Vacant { row })
    }

    /// Checks and applies the step's number, and that its copies stay in the pool.
    pub(crate) fn begin(&mut self, batch: &StepBatch) -> Result<(), BatchError> {
        if let Some(last) = self.last_step
            && batch.step <= last
        {
            return Err(BatchError::StepOrder { last, given: batch.step });
        }
        self.last_step = Some(batch.step);
        let (given, max_num_batched_tokens) = (batch.num_tokens(), self.capacity.max_num_batched_tokens);
        if given > max_num_batched_tokens {
            return Err(BatchError::StepTokens { max_num_batched_tokens, given });
        }
        batch.block_copies.iter().try_for_each(|&(from, to)| self.check_blocks(&[from, to]))?;
        let mut moved = batch.transfers.iter().flat_map(|transfer| &transfer.blocks);
        moved.try_for_each(|&(block, host)| {
            self.check_blocks(&[block]).and_then(|()| self.check_swap_block(host))
        })
    }

    /// Drops a row.
    pub(crate) fn release(&mut self, row: RowId) -> Result<Row, BatchError> {
        let out_of_range = self.row_range(row);
        let slot = self.rows.get_mut(row.0 as usize).ok_or(out_of_range)?;
        slot.take().ok_or(BatchError::Vacant { row })
    }

    /// Takes a row in.
    pub(crate) fn add(&mut self, added: AddedRow) -> Result<&Row, BatchError> {
        self.check_added(&added)?;
        self.num_added += 1;
        let row = Row {
            serial: self.num_added,
            epoch: added.epoch,
            num_known: added.token_ids.len(),
            known: added.token_ids,
            num_sampled: 0,
            num_prompt_tokens: added.num_prompt_tokens as usize,
            num_computed: added.num_computed_tokens as usize,
            blocks: added.block_table,
            num_replacements: 0,
            sampling: added.sampling,
        };
        Ok(self.rows[added.row.0 as usize].insert(row))
    }

    /// Checks what the rows compute. They move on in [`advance`](Self::advance).
    pub(crate) fn plan(&mut self, planned: &[PlannedRow]) -> Result<Vec<RowStep>, BatchError> {
        let mut seen = vec![false; self.rows.len()];
        planned
            .iter()
            .map(|plan| {
                let step = self.plan_row(plan)?;
                match std::mem::replace(&mut seen[plan.row.0 as usize], true) {
                    true => Err(BatchError::PlannedTwice { row: plan.row }),
                    false => Ok(step),
                }
            })
            .collect()
    }

    /// Checks what the gated rows of a step are allowed.
    pub(crate) fn check_masks(&self, steps: &[RowStep], masks: &TokenMasks) -> Result<(), BatchError> {
        let mut waiting: BTreeSet<RowId> =
            steps.iter().filter(|step| step.gated).map(|step| step.row).collect();
        masks.rows.iter().try_for_each(|(row, mask)| match waiting.remove(row) {
            true => self.check_mask(*row, mask),
            false => Err(BatchError::UnexpectedMask { row: *row }),
        })
    }

    fn check_mask(&self, row: RowId, mask: &RowMask) -> Result<(), BatchError> {
        match mask {
            RowMask::AllBut(forbidden) => self.check_ids(row, forbidden),
            RowMask::Only(mask) => {
                let (expected, given) = (mask_words(self.capacity.vocab_size), mask.words().len());
                if given == expected { Ok(()) } else { Err(BatchError::MaskWords { row, expected, given }) }
            }
        }
    }

    /// The rows have computed their part of a step.
    pub(crate) fn advance(&mut self, steps: &[RowStep]) {
        for step in steps {
            let row = self.rows[step.row.0 as usize].as_mut().expect("a planned row is there");
            row.num_computed = step.end();
            row.num_sampled += usize::from(step.sample);
            if row.num_computed >= row.num_known {
                row.known = Vec::new();
            }
        }
    }

    fn plan_row(&mut self, plan: &PlannedRow) -> Result<RowStep, BatchError> {
        self.check_blocks(&plan.new_blocks)?;
        self.check_plan(plan)?;
        self.replace_blocks(plan)?;
        let (max_model_len, block_size) = (self.capacity.max_model_len, self.capacity.block_size);
        let row = self.rows[plan.row.0 as usize].as_mut().expect("checked above");
        row.blocks.extend_from_slice(&plan.new_blocks);
        let end = row.num_computed + plan.num_tokens as usize;
        let (needed, max_blocks) = (end.div_ceil(block_size), max_model_len.div_ceil(block_size));
        let given = row.blocks.len();
        if given < needed || given > max_blocks {
            return Err(BatchError::BlockTable { row: plan.row, needed, max_blocks, given });
        }
        Ok(RowStep {
            row: plan.row,
            epoch: plan.epoch,
            start: row.num_computed,
            num_tokens: plan.num_tokens as usize,
            sample: plan.sample,
            gated: plan.gated,
            from_device: row.num_computed >= row.num_known,
        })
    }

    fn replace_blocks(&mut self, plan: &PlannedRow) -> Result<(), BatchError> {
        for &(table_idx, block) in &plan.replaced_blocks {
            self.check_blocks(&[block])?;
            let row = self.rows[plan.row.0 as usize].as_mut().expect("checked above");
            let num_blocks = row.blocks.len();
            let place = row.blocks.get_mut(table_idx as usize);
            let out_of_range = BatchError::ReplacedBlock { row: plan.row, table_idx, num_blocks };
            *place.ok_or(out_of_range)? = block;
            row.num_replacements += 1;
        }
        Ok(())
    }

    fn check_plan(&self, plan: &PlannedRow) -> Result<(), BatchError> {
        let row = self.get(plan.row)?;
        if row.epoch != plan.epoch {
            return Err(BatchError::Epoch { row: plan.row, expected: row.epoch, given: plan.epoch });
        }
        if plan.num_draft_tokens != 0 {
            return Err(BatchError::DraftTokens { row: plan.row, given: plan.num_draft_tokens });
        }
        let left = row.num_tokens() - row.num_computed;
        let num_tokens = plan.num_tokens as usize;
        if num_tokens == 0 || num_tokens > left {
            return Err(BatchError::RowTokens { row: plan.row, left, given: plan.num_tokens });
        }
        if plan.sample && num_tokens < left {
            return Err(BatchError::SampleBeforeEnd { row: plan.row, left: left - num_tokens });
        }
        if plan.gated && !plan.sample {
            return Err(BatchError::GatedWithoutSample { row: plan.row });
        }
        let (given, max_model_len) = (row.num_computed + num_tokens, self.capacity.max_model_len);
        match given > max_model_len {
            true => Err(BatchError::ModelLen { row: plan.row, max_model_len, given }),
            false => Ok(()),
        }
    }

    fn check_added(&self, added: &AddedRow) -> Result<(), BatchError> {
        let row = added.row;
        match self.get(row) {
            Ok(_) => return Err(BatchError::Occupied { row }),
            Err(BatchError::Vacant { .. }) => {}
            Err(error) => return Err(error),
        }
        let num_tokens = added.token_ids.len();
        let (num_prompt_tokens, num_computed_tokens) = (added.num_prompt_tokens, added.num_computed_tokens);
        if num_prompt_tokens as usize > num_tokens || num_computed_tokens as usize >= num_tokens {
            return Err(BatchError::Added { row, num_tokens, num_prompt_tokens, num_computed_tokens });
        }
        self.check_sampling(row, &added.sampling)?;
        self.check_ids(row, &added.token_ids)?;
        self.check_blocks(&added.block_table)
    }

    fn check_sampling(&self, row: RowId, sampling: &RowSampling) -> Result<(), BatchError> {
        let max_logprobs = self.max_logprobs;
        let given = sampling.logprobs.max(sampling.prompt_logprobs).unwrap_or(0);
        if given > max_logprobs {
            return Err(BatchError::Logprobs { row, given, max_logprobs });
        }
        let num_processors = self.num_processors;
        let is_known = |call: &&ProcessorCall| (call.processor as usize) < num_processors;
        if let Some(call) = sampling.processors.iter().find(|call| !is_known(call)) {
            return Err(BatchError::Processor { row, given: call.processor, num_processors });
        }
        self.check_ids(row, &sampling.end_token_ids)?;
        self.check_ids(row, sampling.allowed_token_ids.as_deref().unwrap_or_default())?;
        sampling.logit_bias.iter().try_for_each(|&(token, _)| self.check_ids(row, &[token]))
    }

    fn check_ids(&self, row: RowId, ids: &[u32]) -> Result<(), BatchError> {
        let vocab_size = self.capacity.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&token_id) => Err(BatchError::TokenId { row, token_id, vocab_size }),
            None => Ok(()),
        }
    }

    fn check_blocks(&self, blocks: &[u32]) -> Result<(), BatchError> {
        let num_blocks = self.capacity.num_blocks;
        match blocks.iter().find(|&&block| block as usize >= num_blocks) {
            Some(&block) => Err(BatchError::BlockRange { block, num_blocks }),
            None => Ok(()),
        }
    }

    fn check_swap_block(&self, block: u32) -> Result<(), BatchError> {
        let num_swap_blocks = self.capacity.num_swap_blocks;
        match (block as usize) < num_swap_blocks {
            true => Ok(()),
            false => Err(BatchError::SwapBlockRange { block, num_swap_blocks }),
        }
    }

    fn row_range(&self, row: RowId) -> BatchError {
        BatchError::RowRange { row, max_num_seqs: self.rows.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenMask;

    fn table() -> RowTable {
        let capacity = DeviceCapacity {
            num_blocks: 4,
            block_size: 4,
            block_bytes: 0,
            max_num_seqs: 2,
            max_num_batched_tokens: 6,
            max_model_len: 12,
            vocab_size: 10,
            num_swap_blocks: 0,
            swap_bytes_per_s: 0,
            max_in_flight: 2,
        };
        RowTable::new(capacity, 5)
    }

    fn added() -> AddedRow {
        AddedRow {
            row: RowId(1),
            epoch: 3,
            token_ids: vec![1, 2, 3, 4, 5],
            num_prompt_tokens: 5,
            num_computed_tokens: 0,
            block_table: vec![0, 1],
            sampling: RowSampling::default(),
        }
    }

    fn plan(num_tokens: u32, sample: bool) -> PlannedRow {
        PlannedRow { row: RowId(1), epoch: 3, num_tokens, sample, ..PlannedRow::default() }
    }

    #[track_caller]
    fn check_added(edit: impl FnOnce(&mut AddedRow), message: &str) {
        let mut row = added();
        edit(&mut row);
        assert_eq!(table().add(row).unwrap_err().to_string(), message);
    }

    #[track_caller]
    fn check_plan(edit: impl FnOnce(&mut PlannedRow), message: &str) {
        let (mut table, mut planned) = (table(), plan(5, true));
        table.add(added()).unwrap();
        edit(&mut planned);
        assert_eq!(table.plan(&[planned]).unwrap_err().to_string(), message);
    }

    #[test]
    fn a_row_that_cannot_start_is_refused_with_the_numbers() {
        check_added(|a| a.row = RowId(2), "row 2 of 2");
        check_added(|a| a.num_computed_tokens = 5, "row 1 has 5 tokens, 5 of them prompt, 5 computed");
        check_added(|a| a.token_ids[2] = 10, "row 1 holds token 10, the vocabulary has 10");
        check_added(|a| a.sampling.end_token_ids = vec![11], "row 1 holds token 11, the vocabulary has 10");
        check_added(|a| a.block_table[1] = 4, "block 4 of 4");
        check_added(
            |a| a.sampling.prompt_logprobs = Some(6),
            "row 1 asks for 6 log-probabilities a token, at most 5 were planned for",
        );
    }

    #[test]
    fn a_plan_that_does_not_fit_its_row_is_refused_with_the_numbers() {
        check_plan(|p| p.row = RowId(0), "row 0 holds no sequence");
        check_plan(|p| p.epoch = 2, "row 1 is at epoch 3, planned at 2");
        check_plan(|p| p.num_tokens = 0, "row 1 has 5 tokens to compute, planned 0");
        check_plan(|p| p.num_tokens = 6, "row 1 has 5 tokens to compute, planned 6");
        check_plan(|p| p.num_tokens = 3, "row 1 samples with 2 tokens left to compute");
        check_plan(|p| p.new_blocks = vec![2, 3], "row 1 holds 4 blocks, needs 2, may have 3");
        check_plan(|p| p.replaced_blocks = vec![(1, 4)], "block 4 of 4");
        check_plan(|p| p.replaced_blocks = vec![(2, 0)], "row 1 replaces block 2 of its table of 2");
        check_plan(
            |p| (p.num_tokens, p.sample, p.gated) = (3, false, true),
            "row 1 is gated but does not sample",
        );
        check_plan(|p| p.num_draft_tokens = 1, "row 1 has 1 draft tokens: speculation is not built");
    }

    #[test]
    fn a_mask_must_be_waited_for_and_fit_the_vocabulary() {
        let mut table = table();
        table.add(added()).unwrap();
        let check = |steps: &[RowStep], rows: Vec<(RowId, RowMask)>| {
            table.check_masks(steps, &TokenMasks { rows }).map_err(|error| error.to_string())
        };
        let steps = |gated| {
            vec![RowStep {
                row: RowId(1),
                epoch: 3,
                start: 0,
                num_tokens: 5,
                sample: true,
                gated,
                from_device: false,
            }]
        };
        let only = |num_tokens| (RowId(1), RowMask::Only(TokenMask::all(num_tokens)));
        assert_eq!(check(&steps(true), vec![only(10)]), Ok(()));
        assert_eq!(check(&steps(true), vec![]), Ok(()), "a row may be left out");
        let unexpected = Err("row 1 got a mask that it does not wait for".to_owned());
        assert_eq!(check(&steps(false), vec![only(10)]), unexpected);
        assert_eq!(check(&steps(true), vec![only(10), only(10)]), unexpected);
        let words = "row 1 got a mask of 2 words, the vocabulary needs 1".to_owned();
        assert_eq!(check(&steps(true), vec![only(33)]), Err(words));
        let id = "row 1 holds token 10, the vocabulary has 10".to_owned();
        assert_eq!(check(&steps(true), vec![(RowId(1), RowMask::AllBut(vec![10]))]), Err(id));
    }

    #[test]
    fn after_its_known_ids_a_row_lives_on_what_was_sampled() {
        let mut table = table();
        table.add(added()).unwrap();
        for (planned, start, from_device) in
            [(plan(4, false), 0, false), (plan(1, true), 4, false), (plan(1, true), 5, true)]
        {
            let steps = table.plan(&[planned]).unwrap();
            assert_eq!((steps[0].start, steps[0].from_device), (start, from_device));
            table.advance(&steps);
        }
        assert_eq!(table.get(RowId(1)).unwrap().num_tokens(), 7);
        assert!(matches!(table.plan(&[plan(2, true)]), Err(BatchError::RowTokens { left: 1, .. })));
        table.release(RowId(1)).unwrap();
        assert_eq!(table.release(RowId(1)).unwrap_err(), BatchError::Vacant { row: RowId(1) });
    }
}
