//! Sampling. Logits after a draw are undefined, so only the tokens are recorded then.

use super::Traced;
use super::queue::{Op, record, record_elements};
use crate::{LogprobsOut, Result, SamplingKernels, SamplingRows, SamplingState, StepCtx, Tensor};

impl SamplingKernels for Traced<dyn SamplingKernels> {
    fn add_bias(&self, ctx: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()> {
        self.0.add_bias(ctx, logits, edits, values)?;
        record(ctx, Op::new("sampling.add_bias"), &[("logits", logits)])
    }

    fn mask(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.0.mask(ctx, state, rows)?;
        record(ctx, Op::new("sampling.mask"), &[("logits", rows.logits)])
    }

    fn penalize(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.0.penalize(ctx, state, rows)?;
        record(ctx, Op::new("sampling.penalize"), &[("logits", rows.logits)])
    }

    fn sample(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        self.0.sample(ctx, state, rows, out)?;
        record(ctx, Op::new("sampling.sample"), &[("out", out)])
    }

    fn filter(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.0.filter(ctx, state, rows)?;
        record(ctx, Op::new("sampling.filter"), &[("logits", rows.logits)])
    }

    /// The counts are of every row and token: too much to read, and seen by the next penalty.
    fn count(&self, ctx: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()> {
        self.0.count(ctx, state, slots, tokens)?;
        record(ctx, Op::new("sampling.count"), &[("tokens", tokens)])
    }

    fn max_top_logprobs(&self, vocab_size: usize) -> usize {
        self.0.max_top_logprobs(vocab_size)
    }

    fn logprobs(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        self.0.logprobs(ctx, logits, chosen, out)?;
        let outputs = [("token_ids", out.token_ids), ("logprobs", out.logprobs), ("ranks", out.ranks)];
        record(ctx, Op::new("sampling.logprobs"), &outputs)
    }

    fn scatter(
        &self,
        ctx: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()> {
        self.0.scatter(ctx, src, src_idx, dst, dst_idx)?;
        record_elements(ctx, Op::new("sampling.scatter"), "dst", (dst, dst_idx))
    }
}
