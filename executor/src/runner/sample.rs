//! From logits to tokens and log-probabilities, on the device.

use quire_kernels::{DType, Kernels, Result, SamplingRows, StepCtx, Tensor};

use super::masks::StepMasks;
use super::pack::{Upload, packed_bytes, view};
use super::processors::HostProcessors;
use super::results::{ResultLayout, logprobs_out};
use super::row_state::RowState;
use crate::row::{RowStep, RowTable};
use crate::{LogprobsMode, RowId};

/// Edits of logits that go to the device at a time.
const MAX_EDITS: usize = 4096;

/// A row that a token is sampled for.
#[derive(Clone, Copy, Debug)]
struct SampledRow {
    row: RowId,
    /// Where the token will stand in its sequence.
    position: usize,
    forbid_end: bool,
    has_penalties: bool,
    wants_logprobs: bool,
    has_mask: bool,
}

impl SampledRow {
    fn new(step: &RowStep, table: &RowTable, masks: &StepMasks) -> Self {
        let row = table.get(step.row).expect("a planned row is there");
        let num_output_tokens = step.end() - row.num_prompt_tokens;
        Self {
            row: step.row,
            position: step.end(),
            forbid_end: num_output_tokens < row.sampling.min_tokens as usize,
            has_penalties: row.sampling.has_penalties(),
            wants_logprobs: row.sampling.logprobs.is_some(),
            has_mask: masks.is_masked(step.row),
        }
    }
}

/// Scratch at most of [`Sampling::enqueue`].
pub(super) fn sample_bytes(max_num_seqs: usize, vocab_size: usize) -> usize {
    let raw_logits = 4 * max_num_seqs * vocab_size;
    raw_logits + packed_bytes(9, 9 * max_num_seqs) + 3 * 4 * MAX_EDITS
}

/// What is sampled for which rows.
pub(super) struct Sampling<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) state: &'a RowState,
    pub(super) table: &'a RowTable,
    pub(super) steps: &'a [RowStep],
    pub(super) layout: &'a ResultLayout,
    pub(super) logprobs_mode: LogprobsMode,
}

/// The indices of a step's sampled rows, on the device.
struct Indices {
    /// Which rows ask for log-probabilities.
    asking: Tensor,
    /// `0..` as many as ask, and as many as sample.
    asking_in_order: Tensor,
    in_order: Tensor,
    /// Places of the rows that ask.
    asking_slots: Tensor,
    asking_positions: Tensor,
    /// Places of the rows.
    slots: Tensor,
    /// The same, -1 for rows without penalties.
    penalized_slots: Tensor,
    /// The same for rows without a mask.
    masked_slots: Tensor,
    positions: Tensor,
}

impl Sampling<'_> {
    /// Samples a token for each row of `logits` (`[num_sampled, vocab_size]`), counts it, keeps it as the input of
    /// the row's next step, and puts it and the log-probabilities asked for in `results`.
    ///
    /// The order is: raw log-probabilities (the rows that want them are copied before anything is edited), bias and the end
    /// tokens that `min_tokens` forbids, masks, penalties, then the draw, which divides by the temperature before min-p, top-k
    /// and top-p. Processed log-probabilities are of what is left then. Rows without penalties are passed over by slot
    /// -1: no row's result hangs on what its neighbours ask for.
    pub(super) fn enqueue(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        masks: &StepMasks,
        processors: &mut HostProcessors,
        results: &Tensor,
    ) -> Result<()> {
        let sampled_steps = self.steps.iter().filter(|step| step.sample);
        let rows: Vec<_> = sampled_steps.map(|step| SampledRow::new(step, self.table, masks)).collect();
        let idx = Indices::send(ctx, &rows)?;
        let sampled = view(results, &self.layout.sampled);

        let told = ctx.alloc(DType::F32, &[idx.asking.num_elements(), logits.num_columns()])?;
        if !self.logprobs_mode.is_processed() {
            self.copy_asking(ctx, logits, &idx, &told)?;
        }
        processors.run(ctx, self.steps, logits, &self.state.last_sampled)?;
        self.edit(ctx, &rows, logits, masks)?;
        if masks.is_any_masked() {
            let masked = SamplingRows { logits, slots: &idx.masked_slots, positions: &idx.positions };
            self.kernels.sampling().mask(ctx, &self.state.device, &masked)?;
        }
        let penalized = SamplingRows { logits, slots: &idx.penalized_slots, positions: &idx.positions };
        let any_penalty = rows.iter().any(|row| row.has_penalties);
        if any_penalty {
            self.kernels.sampling().penalize(ctx, &self.state.device, &penalized)?;
        }
        if self.logprobs_mode.is_processed() {
            self.copy_asking(ctx, logits, &idx, &told)?;
            self.filter(ctx, &told, &idx)?;
        }
        self.draw(ctx, logits, &idx, &sampled)?;
        if any_penalty {
            self.kernels.sampling().count(ctx, &self.state.device, penalized.slots, &sampled)?;
        }
        self.logprobs(ctx, &told, &idx, &sampled, results)
    }

    fn draw(&self, ctx: &mut StepCtx, logits: &Tensor, idx: &Indices, sampled: &Tensor) -> Result<()> {
        let (part, state) = (self.kernels.sampling(), &self.state.device);
        let rows = SamplingRows { logits, slots: &idx.slots, positions: &idx.positions };
        part.sample(ctx, state, &rows, sampled)?;
        part.scatter(ctx, sampled, &idx.in_order, &self.state.last_sampled, &idx.slots)
    }

    /// Keeps the logits that log-probabilities are asked of as they are now.
    fn copy_asking(&self, ctx: &mut StepCtx, logits: &Tensor, idx: &Indices, told: &Tensor) -> Result<()> {
        match told.num_rows() {
            0 => Ok(()),
            _ => self.kernels.norm().gather_rows(ctx, logits, &idx.asking, told),
        }
    }

    /// Leaves in the copy what is drawn from.
    fn filter(&self, ctx: &mut StepCtx, told: &Tensor, idx: &Indices) -> Result<()> {
        let rows = SamplingRows { logits: told, slots: &idx.asking_slots, positions: &idx.asking_positions };
        match told.num_rows() {
            0 => Ok(()),
            _ => self.kernels.sampling().filter(ctx, &self.state.device, &rows),
        }
    }

    fn logprobs(
        &self,
        ctx: &mut StepCtx,
        told: &Tensor,
        idx: &Indices,
        sampled: &Tensor,
        results: &Tensor,
    ) -> Result<()> {
        let (part, num_rows) = (self.kernels.sampling(), told.num_rows());
        if num_rows == 0 {
            return Ok(());
        }
        let chosen = ctx.alloc(DType::I32, &[num_rows])?;
        part.scatter(ctx, sampled, &idx.asking, &chosen, &idx.asking_in_order)?;
        let out = self.layout.logprobs.views(results, 0..num_rows);
        part.logprobs(ctx, told, &chosen, &logprobs_out(&out, self.logprobs_mode))
    }

    /// Biases, the end tokens that `min_tokens` forbids, and what else is forbidden token by token.
    fn edit(&self, ctx: &mut StepCtx, rows: &[SampledRow], logits: &Tensor, masks: &StepMasks) -> Result<()> {
        let (mut places, mut values) = (Vec::new(), Vec::new());
        for (i, row) in rows.iter().enumerate() {
            let forbidden = masks.forbidden(row.row).iter().map(|&token| (token, f32::NEG_INFINITY));
            for (token, value) in self.state.edits(row.row).values(row.forbid_end).chain(forbidden) {
                places.push([i as i32, token as i32]);
                values.push(value);
            }
        }
        for (places, values) in places.chunks(MAX_EDITS).zip(values.chunks(MAX_EDITS)) {
            ctx.scope(|ctx| {
                let edits = ctx.alloc(DType::I32, &[places.len(), 2])?;
                let added = ctx.alloc(DType::F32, &[values.len()])?;
                ctx.write(&edits, places)?;
                ctx.write(&added, values)?;
                self.kernels.sampling().add_bias(ctx, logits, &edits, &added)
            })?;
        }
        Ok(())
    }
}

impl Indices {
    fn send(ctx: &mut StepCtx, rows: &[SampledRow]) -> Result<Self> {
        let num_rows = rows.len() as i32;
        let asking: Vec<i32> = (0..num_rows).filter(|&i| rows[i as usize].wants_logprobs).collect();
        let slot = |row: &SampledRow| row.row.0 as i32;
        let of_asking = |of: fn(&SampledRow) -> i32| asking.iter().map(move |&i| of(&rows[i as usize]));
        let mut upload = Upload::default();
        let places = [
            upload.push(asking.iter().copied()),
            upload.push(0..asking.len() as i32),
            upload.push(0..num_rows),
            upload.push(of_asking(|row| row.row.0 as i32)),
            upload.push(of_asking(|row| row.position as i32)),
            upload.push(rows.iter().map(slot)),
            upload.push(rows.iter().map(|row| if row.has_penalties { slot(row) } else { -1 })),
            upload.push(rows.iter().map(|row| if row.has_mask { slot(row) } else { -1 })),
            upload.push(rows.iter().map(|row| row.position as i32)),
        ];
        let packed = upload.send(ctx)?;
        let [
            asking,
            asking_in_order,
            in_order,
            asking_slots,
            asking_positions,
            slots,
            penalized_slots,
            masked_slots,
            positions,
        ] = places.map(|place| view(&packed, &place));
        Ok(Self {
            asking,
            asking_in_order,
            in_order,
            asking_slots,
            asking_positions,
            slots,
            penalized_slots,
            masked_slots,
            positions,
        })
    }
}
