//! What a step brings back to the host: one tensor, read once.

use std::ops::Range;

use quire_kernels::{DType, LogprobsOut, Readback, Result, StepCtx, Tensor};

use super::pack::{Places, packed_bytes, view, view_as};
use crate::row::{RowStep, RowTable};
use crate::{LogprobsMode, RowFault, RowId, RowOutput, StepOutput, TokenLogprobs};

/// Which values of the step's one result tensor mean what.
#[derive(Debug)]
pub(super) struct ResultLayout {
    places: Places,
    /// Sampled tokens, a row each.
    pub(super) sampled: Range<usize>,
    /// Of the sampled rows that ask for them.
    pub(super) logprobs: LogprobPlaces,
    /// Of the prompt positions that were asked for.
    pub(super) prompt: LogprobPlaces,
    rows: Vec<RowResult>,
}

/// Log-probabilities of `num_rows` tokens and of the `num_top` best beside each.
#[derive(Debug)]
pub(super) struct LogprobPlaces {
    pub(super) num_rows: usize,
    num_top: usize,
    token_ids: Range<usize>,
    logprobs: Range<usize>,
    ranks: Range<usize>,
}

/// What of it one row takes.
#[derive(Debug)]
struct RowResult {
    row: RowId,
    epoch: u32,
    sample: bool,
    /// Where a sampled token will stand.
    position: u32,
    num_top: Option<u32>,
    num_prompt: usize,
    num_prompt_top: u32,
    /// Its logits were edited on the host.
    has_processors: bool,
}

/// Bytes at most of a step's results.
pub(super) fn result_bytes(max_num_seqs: usize, max_num_tokens: usize, max_logprobs: usize) -> usize {
    let per_token = 2 * (1 + max_logprobs) + 1;
    packed_bytes(7, max_num_seqs + (max_num_seqs + max_num_tokens) * per_token)
}

impl ResultLayout {
    pub(super) fn new(steps: &[RowStep], table: &RowTable) -> Self {
        let rows: Vec<RowResult> = steps.iter().map(|step| RowResult::new(step, table)).collect();
        let mut places = Places::default();
        let sampled = places.push(rows.iter().filter(|row| row.sample).count());
        let tops = rows.iter().filter_map(|row| row.num_top);
        let logprobs = LogprobPlaces::new(&mut places, tops.clone().count(), tops.max());
        let num_prompt = rows.iter().map(|row| row.num_prompt).sum();
        let prompt =
            LogprobPlaces::new(&mut places, num_prompt, rows.iter().map(|row| row.num_prompt_top).max());
        Self { places, sampled, logprobs, prompt, rows }
    }

    pub(super) fn alloc(&self, ctx: &mut StepCtx) -> Result<Tensor> {
        self.places.alloc(ctx)
    }

    /// What the values say of each row.
    fn read(&self, values: &[i32]) -> Vec<RowOutput> {
        let (mut sampled, mut logprobs, mut prompt) = (self.sampled.clone(), 0.., 0..);
        let rows = self.rows.iter().map(|row| {
            let token = sampled.by_ref().take(usize::from(row.sample));
            let token = token.map(|i| row.token(values[i])).next().transpose();
            let own = logprobs.by_ref().take(usize::from(row.num_top.is_some()));
            let own = own.map(|i| self.logprobs.read(values, i, row.num_top.unwrap_or(0)));
            let prompt = prompt.by_ref().take(row.num_prompt);
            RowOutput {
                row: row.row,
                epoch: row.epoch,
                // There is nothing to say of the log-probability of no token.
                logprobs: own.filter(|_| token.is_ok()).collect(),
                fault: token.err(),
                token_ids: token.ok().flatten().into_iter().collect(),
                prompt_logprobs: prompt.map(|i| self.prompt.read(values, i, row.num_prompt_top)).collect(),
            }
        });
        rows.collect()
    }
}

impl LogprobPlaces {
    fn new(places: &mut Places, num_rows: usize, num_top: Option<u32>) -> Self {
        let num_top = num_top.unwrap_or(0) as usize;
        let num_values = num_rows * (1 + num_top);
        let [token_ids, logprobs, ranks] = [num_values, num_values, num_rows].map(|n| places.push(n));
        Self { num_rows, num_top, token_ids, logprobs, ranks }
    }

    /// The tensors that the rows `range` of them go to.
    pub(super) fn views(&self, results: &Tensor, range: Range<usize>) -> [Tensor; 3] {
        let dims = [self.num_rows, 1 + self.num_top];
        let token_ids = view_as(results, &self.token_ids, DType::I32, &dims);
        let logprobs = view_as(results, &self.logprobs, DType::F32, &dims);
        [token_ids, logprobs, view(results, &self.ranks)].map(|tensor| tensor.rows(range.start, range.end))
    }

    fn read(&self, values: &[i32], row: usize, num_top: u32) -> TokenLogprobs {
        let width = 1 + self.num_top;
        let place = |range: &Range<usize>| range.start + row * width;
        let (ids, logprobs) = (place(&self.token_ids), place(&self.logprobs));
        let entry = |i: usize| (values[ids + i] as u32, f32::from_bits(values[logprobs + i] as u32));
        let (token_id, logprob) = entry(0);
        TokenLogprobs {
            token_id,
            logprob,
            rank: values[self.ranks.start + row] as u32,
            top: (1..=num_top as usize).map(entry).collect(),
        }
    }
}

/// The tensors of [`LogprobPlaces::views`] as the sampling part takes them.
pub(super) fn logprobs_out(
    [token_ids, logprobs, ranks]: &[Tensor; 3],
    mode: LogprobsMode,
) -> LogprobsOut<'_> {
    LogprobsOut { values: mode.values(), token_ids, logprobs, ranks }
}

impl RowResult {
    fn new(step: &RowStep, table: &RowTable) -> Self {
        let row = table.get(step.row).expect("a planned row is there");
        Self {
            row: step.row,
            epoch: step.epoch,
            sample: step.sample,
            position: step.end() as u32,
            num_top: row.sampling.logprobs.filter(|_| step.sample),
            num_prompt: row.predicting_positions(step).len(),
            num_prompt_top: row.sampling.prompt_logprobs.unwrap_or(0),
            has_processors: !row.sampling.processors.is_empty(),
        }
    }

    /// What the sampling part wrote: a token, or a negative number where no logit was finite.
    fn token(&self, sampled: i32) -> std::result::Result<u32, RowFault> {
        let position = self.position;
        u32::try_from(sampled).map_err(|_| match self.has_processors {
            true => RowFault::Processors { position },
            false => RowFault::NoFiniteLogit { position },
        })
    }
}

/// A step whose work is enqueued; its results are on their way.
#[derive(Debug)]
pub(super) struct PendingResults {
    pub(super) step: u64,
    pub(super) layout: ResultLayout,
    /// `None` where nothing was computed.
    pub(super) readback: Option<Readback>,
}

impl PendingResults {
    /// Waits for the device.
    pub(super) fn wait(self) -> Result<StepOutput> {
        let values = self.readback.map_or(Ok(Vec::new()), Readback::wait_as::<i32>)?;
        Ok(StepOutput { step: self.step, rows: self.layout.read(&values), ..StepOutput::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(row: u32, position: u32) -> RowResult {
        RowResult {
            row: RowId(row),
            epoch: 0,
            sample: true,
            position,
            num_top: Some(0),
            num_prompt: 0,
            num_prompt_top: 0,
            has_processors: false,
        }
    }

    #[test]
    fn a_row_without_a_finite_logit_says_where_and_its_neighbours_have_their_tokens() {
        let mut places = Places::default();
        let layout = ResultLayout {
            sampled: places.push(3),
            logprobs: LogprobPlaces::new(&mut places, 3, Some(0)),
            prompt: LogprobPlaces::new(&mut places, 0, None),
            places,
            rows: vec![row(0, 7), row(1, 8), row(2, 9)],
        };
        let mut values = vec![0; 256];
        values[layout.sampled.clone()].copy_from_slice(&[5, -1, 6]);
        values[layout.logprobs.token_ids.clone()].copy_from_slice(&[5, -1, 6]);
        let rows = layout.read(&values);
        let tokens: Vec<_> = rows.iter().map(|row| &row.token_ids[..]).collect();
        assert_eq!(tokens, [&[5][..], &[], &[6]]);
        let faults = rows.iter().map(|row| row.fault);
        let fault = RowFault::NoFiniteLogit { position: 8 };
        assert_eq!(faults.collect::<Vec<_>>(), [None, Some(fault), None]);
        let logprobs = rows.iter().flat_map(|row| &row.logprobs).map(|entry| entry.token_id);
        assert_eq!(logprobs.collect::<Vec<_>>(), [5, 6]);
    }
}
