//! Sampling: nothing is sorted but a few candidates, nothing leaves the device but tokens.
//!
//! ```text
//! draw       logits to tokens                      cuda/sampling.cu
//! logprobs   of chosen and best tokens             cuda/sampling_logprobs.cu
//! edits      bias, masks, penalties, counts, scatter  cuda/sampling_edits.cu
//! summary    the scratch in which rows are summed up by segments and groups
//! ```
//!
//! A row is cut into segments of a fixed size, and masses are summed as integers: so a row's token does not depend
//! on the other rows, nor on the run. What a token needs in f64 (its noise) is computed for those alone that an f32
//! bound does not exclude. A row with NaN, with plus infinity or without a number gives the token -1.

mod draw;
mod edits;
mod logprobs;
mod summary;

use std::sync::Arc;

use quire_kernels::{
    Device as _, DeviceId, Dispatch, Limits, LogprobsOut, Part, Result, SamplingKernels, SamplingRows,
    SamplingState, StepCtx, Tensor,
};

use crate::Error;
use crate::device::CudaDevice;
use draw::Draw;
use edits::Edits;
use logprobs::{Logprobs, MAX_TOP};
use summary::Summary;

/// The sampling part.
pub(crate) struct CudaSampling {
    device: Arc<CudaDevice>,
    draw: Draw,
    logprobs: Logprobs,
    edits: Edits,
}

impl CudaSampling {
    pub(crate) fn new(device: Arc<CudaDevice>) -> std::result::Result<Self, Error> {
        Ok(Self {
            draw: Draw::new(&device)?,
            logprobs: Logprobs::new(&device)?,
            edits: Edits::new(&device)?,
            device,
        })
    }
}

impl Part for CudaSampling {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn scratch_bytes(&self, limits: &Limits) -> usize {
        Summary::scratch_bytes(limits.max_num_seqs)
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![
            Dispatch::new(
                "sampling.sample",
                "segments, groups, candidates",
                "logits are read once; each row decides on the device how much of the rest it needs",
            ),
            Dispatch::new("sampling.logprobs", "segments, groups, candidates", "logits are read once"),
        ]
    }
}

impl SamplingKernels for CudaSampling {
    fn add_bias(&self, ctx: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()> {
        self.edits.add_bias(ctx, logits, edits, values)
    }

    fn mask(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.edits.mask(ctx, state, rows)
    }

    fn penalize(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.edits.penalize(ctx, state, rows)
    }

    fn sample(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        self.draw.sample(ctx, state, rows, out)
    }

    fn filter(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()> {
        self.draw.filter(ctx, state, rows)
    }

    fn count(&self, ctx: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()> {
        self.edits.count(ctx, state, slots, tokens)
    }

    fn max_top_logprobs(&self, vocab_size: usize) -> usize {
        vocab_size.min(MAX_TOP)
    }

    fn logprobs(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        self.logprobs.run(ctx, logits, chosen, out)
    }

    fn scatter(
        &self,
        ctx: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()> {
        self.edits.scatter(ctx, src, src_idx, dst, dst_idx)
    }
}
