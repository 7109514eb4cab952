//! Sampling.

use super::Deferred;
use super::enqueue::{Enqueue, poison};
use super::on_inner::OnInner;
use crate::{LogprobsOut, Result, SamplingKernels, SamplingRows, SamplingState, StepCtx, Tensor};

impl SamplingKernels for Deferred<dyn SamplingKernels> {
    fn add_bias(&self, ctx: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([logits, edits, values]);
        let (logits, edits, values) = (logits.on_inner(), edits.on_inner(), values.on_inner());
        let part = self.part.clone();
        enqueue.run(move |ctx| part.add_bias(ctx, &logits, &edits, &values))
    }

    fn mask(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        let (state, rows, part) = (state.on_inner(), OwnedRows::on_inner(rows), self.part.clone());
        Enqueue::new(ctx).run(move |ctx| part.mask(ctx, &state, &rows.borrowed()))
    }

    fn penalize(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        let (state, rows, part) = (state.on_inner(), OwnedRows::on_inner(rows), self.part.clone());
        Enqueue::new(ctx).run(move |ctx| part.penalize(ctx, &state, &rows.borrowed()))
    }

    fn sample(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([rows.logits, rows.slots, rows.positions]).writes([out]);
        let (state, rows, out) = (state.on_inner(), OwnedRows::on_inner(rows), out.on_inner());
        let part = self.part.clone();
        enqueue.run(move |ctx| {
            part.sample(ctx, &state, &rows.borrowed(), &out)?;
            // The contract leaves them undefined, so nobody may count on them.
            poison(ctx, &rows.logits)
        })
    }

    fn filter(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        let (state, rows, part) = (state.on_inner(), OwnedRows::on_inner(rows), self.part.clone());
        Enqueue::new(ctx).run(move |ctx| part.filter(ctx, &state, &rows.borrowed()))
    }

    fn count(&self, ctx: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()> {
        let (state, slots, tokens) = (state.on_inner(), slots.on_inner(), tokens.on_inner());
        let part = self.part.clone();
        Enqueue::new(ctx).run(move |ctx| part.count(ctx, &state, &slots, &tokens))
    }

    fn max_top_logprobs(&self, vocab_size: usize) -> usize {
        self.part.max_top_logprobs(vocab_size)
    }

    fn logprobs(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        let enqueue =
            Enqueue::new(ctx).reads([logits, chosen]).writes([out.token_ids, out.logprobs, out.ranks]);
        let (logits, chosen) = (logits.on_inner(), chosen.on_inner());
        let (token_ids, logprobs, ranks) =
            (out.token_ids.on_inner(), out.logprobs.on_inner(), out.ranks.on_inner());
        let (part, values) = (self.part.clone(), out.values);
        enqueue.run(move |ctx| {
            let out = LogprobsOut { values, token_ids: &token_ids, logprobs: &logprobs, ranks: &ranks };
            part.logprobs(ctx, &logits, &chosen, &out)
        })
    }

    fn scatter(
        &self,
        ctx: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()> {
        let enqueue = Enqueue::new(ctx).reads([src, src_idx, dst, dst_idx]);
        let (src, src_idx) = (src.on_inner(), src_idx.on_inner());
        let (dst, dst_idx, part) = (dst.on_inner(), dst_idx.on_inner(), self.part.clone());
        enqueue.run(move |ctx| part.scatter(ctx, &src, &src_idx, &dst, &dst_idx))
    }
}

struct OwnedRows {
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
}

impl OwnedRows {
    fn on_inner(rows: &SamplingRows<'_>) -> Self {
        Self {
            logits: rows.logits.on_inner(),
            slots: rows.slots.on_inner(),
            positions: rows.positions.on_inner(),
        }
    }

    fn borrowed(&self) -> SamplingRows<'_> {
        SamplingRows { logits: &self.logits, slots: &self.slots, positions: &self.positions }
    }
}
