//! Sampling.
//!
//! ```text
//! sample     one row: largest logit, cuts, draw              sampler.rs
//! summary    largest logit, and bounds for the next ones     summary.rs
//! cut        which tokens min-p, top-k and top-p keep        cut.rs
//! draw       the kept token with the best noisy logit        draw.rs
//! edits      bias, masks, penalties, counts                         edits.rs
//! logprobs   of chosen and best tokens                       logprobs.rs
//! ```
//!
//! A row that holds NaN, plus infinity or nothing finite has no token. For log-probabilities a NaN counts as minus
//! infinity.

mod cut;
mod draw;
mod edits;
mod logprobs;
mod sampler;
mod summary;
#[cfg(test)]
mod tests;

use quire_kernels::{
    Device as _, DeviceId, Dispatch, LogprobsOut, Part, Result, SamplingKernels, SamplingRows, SamplingState,
    StepCtx, Tensor,
};

use sampler::Columns;

use crate::device::CpuDevice;

/// The sampling part.
#[derive(Debug)]
pub(crate) struct CpuSampling {
    device: CpuDevice,
}

impl CpuSampling {
    pub(crate) fn new(device: CpuDevice) -> Self {
        Self { device }
    }
}

impl Part for CpuSampling {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        let reason = "selection without sorting, noise where it can matter";
        vec![Dispatch::new("sampling", format!("cut and gumbel {}", self.device.isa()), reason)]
    }
}

impl SamplingKernels for CpuSampling {
    fn add_bias(&self, _: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()> {
        let mut session = self.device.session();
        let (_, [edits, values], [logits]) = session.open([edits, values], [logits]);
        let (edits, values, mut logits) = (edits.rows::<i32>(), values.slice::<f32>(), logits.rows::<f32>());
        for (i, value) in values.iter().enumerate() {
            if let &[Ok(row), Ok(token)] = &[edits.row(i)[0], edits.row(i)[1]].map(usize::try_from) {
                edits::add_bias(&mut logits.row_mut(row)[token], *value);
            }
        }
        Ok(())
    }

    fn mask(&self, _: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        let mut session = self.device.session();
        let (pool, [slots, masks], [logits]) = session.open([rows.slots, &state.masks], [rows.logits]);
        let (slots, masks) = (slots.slice::<i32>(), masks.rows::<u32>());
        logits.rows::<f32>().for_each(pool, 1, |row, logits| {
            let Ok(slot) = usize::try_from(slots[row]) else { return };
            edits::mask(logits, masks.row(slot));
        });
        Ok(())
    }

    fn penalize(&self, _: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        let mut session = self.device.session();
        let (pool, inputs, [logits]) = session.open(
            [
                rows.slots,
                &state.presence_penalty,
                &state.frequency_penalty,
                &state.repetition_penalty,
                &state.counts,
            ],
            [rows.logits],
        );
        let [slots, presence, frequency, repetition, counts] = inputs;
        let (slots, counts) = (slots.slice::<i32>(), counts.rows::<i32>());
        let [presence, frequency, repetition] = [presence, frequency, repetition].map(|p| p.slice::<f32>());
        logits.rows::<f32>().for_each(pool, 1, |row, logits| {
            let Ok(slot) = usize::try_from(slots[row]) else { return };
            let penalties = edits::Penalties {
                presence: presence[slot],
                frequency: frequency[slot],
                repetition: repetition[slot],
            };
            penalties.apply(logits, counts.row(slot));
        });
        Ok(())
    }

    fn sample(
        &self,
        _: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let [slots, positions, temperature, top_k, top_p, min_p, keys] = columns(state, rows);
        let (pool, inputs, [out]) =
            session.open([rows.logits, slots, positions, temperature, top_k, top_p, min_p, keys], [out]);
        let [logits, columns @ ..] = inputs;
        let columns = Columns::new(columns);
        sampler::sample_rows(isa, pool, logits.rows(), |row| columns.of(row), &out.rows());
        Ok(())
    }

    fn filter(&self, _: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        let isa = self.device.isa();
        let mut session = self.device.session();
        let (pool, inputs, [logits]) = session.open(columns(state, rows), [rows.logits]);
        let columns = Columns::new(inputs);
        sampler::filter_rows(isa, pool, &mut logits.rows(), |row| columns.of(row));
        Ok(())
    }

    fn count(&self, _: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()> {
        let mut session = self.device.session();
        let (_, [slots, tokens], [counts]) = session.open([slots, tokens], [&state.counts]);
        let (slots, tokens, mut counts) = (slots.slice::<i32>(), tokens.slice::<i32>(), counts.rows::<i32>());
        for (slot, token) in slots.iter().zip(tokens) {
            let Ok(slot) = usize::try_from(*slot) else { continue };
            let Ok(token) = usize::try_from(*token) else { continue };
            counts.row_mut(slot)[token] += 1;
        }
        Ok(())
    }

    fn logprobs(
        &self,
        _: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        let (isa, values) = (self.device.isa(), out.values);
        let mut session = self.device.session();
        let (pool, [logits, chosen], outputs) =
            session.open([logits, chosen], [out.token_ids, out.logprobs, out.ranks]);
        let [token_ids, logprobs, ranks] = outputs;
        let (logits, chosen) = (logits.rows::<f32>(), chosen.slice::<i32>());
        let (mut token_ids, logprobs) = (token_ids.rows::<i32>(), logprobs.rows::<f32>());
        let (columns, ranks) = (0..logprobs.columns(), ranks.rows::<i32>());
        token_ids.for_each(pool, 1, |row, token_ids| {
            // SAFETY: the pool visits each row once; the one row of `ranks` has an element for each.
            let (logprobs, rank) =
                unsafe { (logprobs.slice_mut(row, columns.clone()), ranks.slice_mut(0, row..row + 1)) };
            token_ids[0] = chosen[row];
            rank[0] = logprobs::of_row(isa, logits.row(row), values, token_ids, logprobs) as i32;
        });
        Ok(())
    }

    fn scatter(
        &self,
        _: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()> {
        let mut session = self.device.session();
        let (_, inputs, [dst]) = session.open([src, src_idx, dst_idx], [dst]);
        let ([src, src_idx, dst_idx], dst) = (inputs.map(|x| x.slice::<i32>()), dst.slice::<i32>());
        for (from, to) in src_idx.iter().zip(dst_idx) {
            if let (Ok(from), Ok(to)) = (usize::try_from(*from), usize::try_from(*to)) {
                dst[to] = src[from].max(0);
            }
        }
        Ok(())
    }
}

/// What the parameters of rows are read from, in the order of [`Columns::new`].
fn columns<'a>(state: &'a SamplingState, rows: &SamplingRows<'a>) -> [&'a Tensor; 7] {
    let SamplingState { temperature, top_k, top_p, min_p, keys, .. } = state;
    [rows.slots, rows.positions, temperature, top_k, top_p, min_p, keys]
}
