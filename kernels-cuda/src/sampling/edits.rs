//! What is done to logits and tokens around a draw.

use quire_kernels::{Result, SamplingRows, SamplingState, StepCtx, Tensor, mask_words};

use crate::Error;
use crate::device::CudaDevice;
use crate::elementwise::{THREADS, count, one_thread_each, stride};
use crate::launch::{Grid, launch};
use crate::memory::address;
use crate::module::Kernel;

/// Tokens that a block of `mask` and of `penalize` looks at.
const BLOCK_TOKENS: usize = 2048;

/// Rows of one launch at most: the grid's second dimension.
const MAX_ROWS: usize = 65_535;

/// The kernels of the family `sampling_edits`.
pub(super) struct Edits {
    add_bias: Kernel,
    mask: Kernel,
    penalize: Kernel,
    count: Kernel,
    scatter: Kernel,
}

impl Edits {
    pub(super) fn new(device: &CudaDevice) -> std::result::Result<Self, Error> {
        let kernel = |name| device.kernel("sampling_edits", name);
        Ok(Self {
            add_bias: kernel("add_bias")?,
            mask: kernel("mask")?,
            penalize: kernel("penalize")?,
            count: kernel("count")?,
            scatter: kernel("scatter")?,
        })
    }

    pub(super) fn add_bias(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        edits: &Tensor,
        values: &Tensor,
    ) -> Result<()> {
        let num_edits = values.num_elements();
        assert_eq!(edits.num_elements(), 2 * num_edits, "an edit is a row and a token");
        let params = AddBiasParams {
            logits: address(logits),
            edits: address(edits),
            values: address(values),
            logits_stride: stride(logits),
            num_edits: count(num_edits),
            unused: 0,
        };
        // SAFETY: the struct is the kernel's; the caller vouches that edits lie in the logits.
        unsafe { launch(ctx, &self.add_bias, one_thread_each(num_edits), &params) }
    }

    pub(super) fn mask(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
    ) -> Result<()> {
        let (num_rows, vocab_size) = (rows.logits.num_rows(), rows.logits.num_columns());
        assert_eq!(rows.slots.num_elements(), num_rows, "every row has a slot");
        assert_eq!(state.masks.num_columns(), mask_words(vocab_size), "every token has a bit");
        for start in (0..num_rows).step_by(MAX_ROWS) {
            let end = num_rows.min(start + MAX_ROWS);
            let logits = rows.logits.rows(start, end);
            let params = MaskParams {
                logits: address(&logits),
                slots: address(&rows.slots.rows(start, end)),
                masks: address(&state.masks),
                logits_stride: stride(&logits),
                masks_stride: stride(&state.masks),
                vocab_size: count(vocab_size),
                unused: 0,
            };
            let blocks = [count(vocab_size.div_ceil(BLOCK_TOKENS)), count(end - start), 1];
            let grid = Grid { blocks, threads: THREADS, shared_bytes: 0, overlaps: true };
            // SAFETY: the struct is the kernel's; logits have rows of `vocab_size`, masks a bit for each token of a row,
            // and slots lie in the state, as the caller vouches.
            unsafe { launch(ctx, &self.mask, grid, &params) }?;
        }
        Ok(())
    }

    pub(super) fn penalize(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
    ) -> Result<()> {
        let (num_rows, vocab_size) = (rows.logits.num_rows(), rows.logits.num_columns());
        assert_eq!(rows.slots.num_elements(), num_rows, "every row has a slot");
        assert_eq!(state.counts.num_columns(), vocab_size, "every token is counted");
        for start in (0..num_rows).step_by(MAX_ROWS) {
            let end = num_rows.min(start + MAX_ROWS);
            let logits = rows.logits.rows(start, end);
            let params = PenalizeParams {
                logits: address(&logits),
                slots: address(&rows.slots.rows(start, end)),
                presence: address(&state.presence_penalty),
                frequency: address(&state.frequency_penalty),
                repetition: address(&state.repetition_penalty),
                counts: address(&state.counts),
                logits_stride: stride(&logits),
                counts_stride: stride(&state.counts),
                vocab_size: count(vocab_size),
                unused: 0,
            };
            let blocks = [count(vocab_size.div_ceil(BLOCK_TOKENS)), count(end - start), 1];
            let grid = Grid { blocks, threads: THREADS, shared_bytes: 0, overlaps: true };
            // SAFETY: the struct is the kernel's; logits and counts have rows of `vocab_size`, and slots lie in the
            // state, as the caller vouches.
            unsafe { launch(ctx, &self.penalize, grid, &params) }?;
        }
        Ok(())
    }

    pub(super) fn count(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        slots: &Tensor,
        tokens: &Tensor,
    ) -> Result<()> {
        let num_rows = tokens.num_elements();
        assert_eq!(slots.num_elements(), num_rows, "every token has a slot");
        let params = CountParams {
            slots: address(slots),
            tokens: address(tokens),
            counts: address(&state.counts),
            counts_stride: stride(&state.counts),
            num_rows: count(num_rows),
            vocab_size: count(state.counts.num_columns()),
        };
        // SAFETY: the struct is the kernel's, which leaves out tokens beyond the vocabulary; slots lie in the state, as
        // the caller vouches.
        unsafe { launch(ctx, &self.count, one_thread_each(num_rows), &params) }
    }

    pub(super) fn scatter(
        &self,
        ctx: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()> {
        let num_indices = src_idx.num_elements();
        assert_eq!(dst_idx.num_elements(), num_indices, "every element has a source and a place");
        let params = ScatterParams {
            src: address(src),
            src_idx: address(src_idx),
            dst: address(dst),
            dst_idx: address(dst_idx),
            num_indices: count(num_indices),
            unused: 0,
        };
        // SAFETY: the struct is the kernel's; the caller vouches for the indices.
        unsafe { launch(ctx, &self.scatter, one_thread_each(num_indices), &params) }
    }
}

/// `AddBiasParams` of `cuda/sampling_edits.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AddBiasParams {
    logits: u64,
    edits: u64,
    values: u64,
    logits_stride: i64,
    num_edits: u32,
    unused: u32,
}

/// `MaskParams` of `cuda/sampling_edits.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MaskParams {
    logits: u64,
    slots: u64,
    masks: u64,
    logits_stride: i64,
    masks_stride: i64,
    vocab_size: u32,
    unused: u32,
}

/// `PenalizeParams` of `cuda/sampling_edits.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PenalizeParams {
    logits: u64,
    slots: u64,
    presence: u64,
    frequency: u64,
    repetition: u64,
    counts: u64,
    logits_stride: i64,
    counts_stride: i64,
    vocab_size: u32,
    unused: u32,
}

/// `CountParams` of `cuda/sampling_edits.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CountParams {
    slots: u64,
    tokens: u64,
    counts: u64,
    counts_stride: i64,
    num_rows: u32,
    vocab_size: u32,
}

/// `ScatterParams` of `cuda/sampling_edits.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ScatterParams {
    src: u64,
    src_idx: u64,
    dst: u64,
    dst_idx: u64,
    num_indices: u32,
    unused: u32,
}
