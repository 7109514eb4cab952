//! Log-probabilities of chosen tokens, and of the best ones.

use quire_kernels::{Error as KernelError, LogprobsOut, Result, StepCtx, Tensor, TokenValues};

use super::summary::Summary;
use crate::Error;
use crate::device::{BACKEND, CudaDevice};
use crate::elementwise::{count, stride};
use crate::launch::launch;
use crate::memory::address;
use crate::module::Kernel;

/// Best tokens that a row can be asked for: `MAX_CANDIDATES` of `cuda/sampling_select.cuh`.
pub(super) const MAX_TOP: usize = 2048;

/// The kernels of log-probabilities.
pub(super) struct Logprobs {
    scan: Kernel,
    pick: Kernel,
}

impl Logprobs {
    pub(super) fn new(device: &CudaDevice) -> std::result::Result<Self, Error> {
        let kernel = |name| device.kernel("sampling_logprobs", name);
        Ok(Self { scan: kernel("logprobs_scan")?, pick: kernel("logprobs_pick")? })
    }

    pub(super) fn run(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        let (num_rows, vocab_size) = (logits.num_rows(), logits.num_columns());
        let num_top = out.token_ids.num_columns() - 1;
        let rows = [chosen.num_elements(), out.ranks.num_elements(), out.token_ids.num_rows()];
        assert_eq!(rows, [num_rows; 3], "every row has a chosen token and a place for what is found");
        assert_eq!(out.logprobs.dims(), out.token_ids.dims(), "every token has a log-probability");
        if num_top > MAX_TOP.min(vocab_size) {
            let what = format!("log-probabilities of the best {num_top} tokens of {vocab_size}");
            return Err(KernelError::Unsupported { backend: BACKEND.to_owned(), part: "sampling", what });
        }
        let at_once = Summary::rows_at_once(num_rows, vocab_size);
        for start in (0..num_rows).step_by(at_once) {
            let end = num_rows.min(start + at_once);
            let part = LogprobsOut {
                values: out.values,
                token_ids: &out.token_ids.rows(start, end),
                logprobs: &out.logprobs.rows(start, end),
                ranks: &out.ranks.rows(start, end),
            };
            ctx.scope(|ctx| self.run_rows(ctx, &logits.rows(start, end), &chosen.rows(start, end), &part))?;
        }
        Ok(())
    }

    fn run_rows(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()> {
        let summary = Summary::alloc(ctx, logits.num_rows(), logits.num_columns())?;
        let params = LogprobsParams {
            logits: address(logits),
            chosen: address(chosen),
            token_ids: address(out.token_ids),
            logprobs: address(out.logprobs),
            ranks: address(out.ranks),
            segments: summary.segments,
            at_least: summary.extra,
            group_keys: summary.group_keys,
            group_sums: summary.group_sums,
            logits_stride: stride(logits),
            token_ids_stride: stride(out.token_ids),
            logprobs_stride: stride(out.logprobs),
            vocab_size: count(logits.num_columns()),
            num_segments: summary.num_segments,
            num_top: count(out.token_ids.num_columns() - 1),
            wants_logits: u32::from(out.values == TokenValues::Logits),
        };
        // SAFETY: the struct is the kernel's; the scratch has its size from the same rows and vocabulary, and the
        // outputs have a row for each row of logits.
        unsafe { launch(ctx, &self.scan, summary.scan_grid(), &params) }?;
        // SAFETY: as above.
        unsafe { launch(ctx, &self.pick, summary.pick_grid(), &params) }
    }
}

/// `LogprobsParams` of `cuda/sampling_logprobs.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LogprobsParams {
    logits: u64,
    chosen: u64,
    token_ids: u64,
    logprobs: u64,
    ranks: u64,
    segments: u64,
    at_least: u64,
    group_keys: u64,
    group_sums: u64,
    logits_stride: i64,
    token_ids_stride: i64,
    logprobs_stride: i64,
    vocab_size: u32,
    num_segments: u32,
    num_top: u32,
    wants_logits: u32,
}
