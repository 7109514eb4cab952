//! Sampling, row by row.

use super::memory::{load, load_bytes, load_i32, store, store_i32};
use super::plain_part;
use crate::math::sampling::{self, Filter, Penalties};
use crate::random::DrawKey;
use crate::{
    DeviceId, LogprobsOut, NO_TOKEN, Result, SamplingKernels, SamplingRows, SamplingState, StepCtx, Tensor,
    TokenValues,
};

pub(super) struct Sampling(pub(super) DeviceId);

plain_part!(Sampling, "sampling");

impl SamplingKernels for Sampling {
    fn add_bias(&self, _: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()> {
        for (edit, value) in load_i32(edits).chunks(2).zip(load(values)) {
            if let &[Ok(row), Ok(token)] = &[usize::try_from(edit[0]), usize::try_from(edit[1])] {
                let logit = logits.rows(row, row + 1).columns(token, token + 1);
                store(&logit, &[load(&logit)[0] + value]);
            }
        }
        Ok(())
    }

    fn mask(&self, _: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        for (row, slot) in live(rows.slots) {
            let bytes = load_bytes(&state.masks.rows(slot, slot + 1));
            let words: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&bytes);
            let logits = rows.logits.rows(row, row + 1);
            store(&logits, &sampling::masked(&load(&logits), &words));
        }
        Ok(())
    }

    fn penalize(&self, _: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        for (row, slot) in live(rows.slots) {
            let penalties = Penalties {
                presence: one(&state.presence_penalty, slot),
                frequency: one(&state.frequency_penalty, slot),
                repetition: one(&state.repetition_penalty, slot),
            };
            let counts = load_i32(&state.counts.rows(slot, slot + 1));
            let logits = rows.logits.rows(row, row + 1);
            let new: Vec<f64> =
                load(&logits).into_iter().zip(counts).map(|(l, count)| penalties.apply(l, count)).collect();
            store(&logits, &new);
        }
        Ok(())
    }

    fn sample(
        &self,
        _: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        let positions = load_i32(rows.positions);
        let mut tokens = vec![0; positions.len()];
        for (row, slot) in live(rows.slots) {
            let filter = filter_of(state, slot);
            let logits = load(&rows.logits.rows(row, row + 1));
            let token = filter.sample(&logits, draw_key(state, slot, positions[row]));
            tokens[row] = token.map_or(NO_TOKEN, |token| token as i32);
        }
        store_i32(out, &tokens);
        Ok(())
    }

    fn filter(&self, _: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        for (row, slot) in live(rows.slots) {
            let filter = filter_of(state, slot);
            if filter.temperature > 0.0 {
                let logits = rows.logits.rows(row, row + 1);
                store(&logits, &filter.filtered(&load(&logits)));
            }
        }
        Ok(())
    }

    fn count(&self, _: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()> {
        let tokens = load_i32(tokens);
        for (i, slot) in live(slots) {
            let Ok(token) = usize::try_from(tokens[i]) else { continue };
            let count = state.counts.rows(slot, slot + 1).columns(token, token + 1);
            store_i32(&count, &[load_i32(&count)[0] + 1]);
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
        let num_top = out.token_ids.num_columns() - 1;
        for (row, chosen) in load_i32(chosen).into_iter().enumerate() {
            let logits = load(&logits.rows(row, row + 1));
            let values = match out.values {
                TokenValues::Logprobs => sampling::log_softmax(&logits),
                TokenValues::Logits => sampling::numbers(&logits),
            };
            let best = sampling::ranked(&logits).into_iter().take(num_top);
            let tokens: Vec<i32> = std::iter::once(chosen).chain(best.map(|t| t as i32)).collect();
            let logprob = |&t: &i32| usize::try_from(t).map_or(f64::NEG_INFINITY, |t| values[t]);
            let values: Vec<f64> = tokens.iter().map(logprob).collect();
            store_i32(&out.token_ids.rows(row, row + 1), &tokens);
            store(&out.logprobs.rows(row, row + 1), &values);
            let rank = usize::try_from(chosen).map_or(0, |chosen| sampling::rank(&logits, chosen));
            store_i32(&out.ranks.rows(row, row + 1), &[rank as i32]);
        }
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
        let (src, mut result) = (load_i32(src), load_i32(dst));
        for (from, to) in load_i32(src_idx).into_iter().zip(load_i32(dst_idx)) {
            if let (Ok(from), Ok(to)) = (usize::try_from(from), usize::try_from(to)) {
                result[to] = src[from].max(0);
            }
        }
        store_i32(dst, &result);
        Ok(())
    }
}

/// The rows that are no padding, with their slots.
fn live(slots: &Tensor) -> impl Iterator<Item = (usize, usize)> {
    let slots = load_i32(slots).into_iter().enumerate();
    slots.filter_map(|(row, slot)| usize::try_from(slot).ok().map(|slot| (row, slot)))
}

fn filter_of(state: &SamplingState, slot: usize) -> Filter {
    Filter {
        temperature: one(&state.temperature, slot),
        top_k: load_i32(&state.top_k)[slot].max(0) as usize,
        top_p: one(&state.top_p, slot),
        min_p: one(&state.min_p, slot),
    }
}

fn one(column: &Tensor, slot: usize) -> f64 {
    load(&column.rows(slot, slot + 1))[0]
}

fn draw_key(state: &SamplingState, slot: usize, position: i32) -> DrawKey {
    let bytes = load_bytes(&state.keys.rows(slot, slot + 1));
    let key: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&bytes);
    DrawKey { seed: u64::from(key[0]) | u64::from(key[1]) << 32, sequence: key[2], position: position as u32 }
}
