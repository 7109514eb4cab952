//! From logits to tokens and log-probabilities, on the device.

use quire_kernels::{DType, Kernels, Result, SamplingRows, StepCtx, Tensor};

use super::pack::{Upload, packed_bytes, view};
use super::results::{ResultLayout, logprobs_out};
use super::row_state::RowState;
use crate::RowId;
use crate::row::{RowStep, RowTable};

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
}

impl SampledRow {
    fn new(step: &RowStep, table: &RowTable) -> Self {
        let row = table.get(step.row).expect("a planned row is there");
        let num_output_tokens = step.end() - row.num_prompt_tokens;
        Self {
            row: step.row,
            position: step.end(),
            forbid_end: num_output_tokens < row.sampling.min_tokens as usize,
            has_penalties: row.sampling.has_penalties(),
            wants_logprobs: row.sampling.logprobs.is_some(),
        }
    }
}

/// Scratch at most of [`sample`], and of [`edit`] within it.
pub(super) fn sample_bytes(max_num_seqs: usize, vocab_size: usize) -> usize {
    let raw_logits = 4 * max_num_seqs * vocab_size;
    raw_logits + packed_bytes(6, 6 * max_num_seqs) + 3 * 4 * MAX_EDITS
}

/// Samples a token for each row of `logits` (`[num_sampled, vocab_size]`), counts it, keeps it as the input of the
/// row's next step, and puts it and the log-probabilities asked for in `results`.
///
/// Log-probabilities are those of the raw logits, so the rows that want them are copied before anything is edited.
/// Rows without penalties are passed over by slot -1: no row's result hangs on what its neighbours ask for.
pub(super) fn sample(
    kernels: &Kernels,
    ctx: &mut StepCtx,
    state: &RowState,
    (steps, table): (&[RowStep], &RowTable),
    logits: &Tensor,
    (layout, results): (&ResultLayout, &Tensor),
) -> Result<()> {
    let part = kernels.sampling();
    let rows: Vec<_> =
        steps.iter().filter(|step| step.sample).map(|step| SampledRow::new(step, table)).collect();
    let asking: Vec<_> = (0..rows.len() as i32).filter(|&i| rows[i as usize].wants_logprobs).collect();
    let slot = |row: &SampledRow| row.row.0 as i32;

    let mut upload = Upload::default();
    let slots = upload.push(rows.iter().map(slot));
    let positions = upload.push(rows.iter().map(|row| row.position as i32));
    let penalized = upload.push(rows.iter().map(|row| if row.has_penalties { slot(row) } else { -1 }));
    let in_order = upload.push(0..rows.len() as i32);
    let asking_idx = upload.push(asking.iter().copied());
    let idx = upload.send(ctx)?;
    let at = |place| view(&idx, place);

    let raw = ctx.alloc(DType::F32, &[asking.len(), logits.num_columns()])?;
    if !asking.is_empty() {
        kernels.norm().gather_rows(ctx, logits, &at(&asking_idx), &raw)?;
    }
    edit(kernels, ctx, state, &rows, logits)?;
    let any_penalty = rows.iter().any(|row| row.has_penalties);
    if any_penalty {
        let rows = SamplingRows { logits, slots: &at(&penalized), positions: &at(&positions) };
        part.penalize(ctx, &state.device, &rows)?;
    }
    let sampled = view(results, &layout.sampled);
    let sampling_rows = SamplingRows { logits, slots: &at(&slots), positions: &at(&positions) };
    part.sample(ctx, &state.device, &sampling_rows, &sampled)?;
    if any_penalty {
        part.count(ctx, &state.device, &at(&penalized), &sampled)?;
    }
    part.scatter(ctx, &sampled, &at(&in_order), &state.last_sampled, &at(&slots))?;
    if asking.is_empty() {
        return Ok(());
    }
    let chosen = ctx.alloc(DType::I32, &[asking.len()])?;
    part.scatter(
        ctx,
        &sampled,
        &at(&asking_idx),
        &chosen,
        &at(&(in_order.start..in_order.start + asking.len())),
    )?;
    let out = layout.logprobs.views(results, 0..asking.len());
    part.logprobs(ctx, &raw, &chosen, &logprobs_out(&out))
}

/// Biases, and the end tokens that `min_tokens` forbids.
fn edit(
    kernels: &Kernels,
    ctx: &mut StepCtx,
    state: &RowState,
    rows: &[SampledRow],
    logits: &Tensor,
) -> Result<()> {
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for (i, row) in rows.iter().enumerate() {
        for (token, value) in state.edits(row.row).values(row.forbid_end) {
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
            kernels.sampling().add_bias(ctx, logits, &edits, &added)
        })?;
    }
    Ok(())
}
