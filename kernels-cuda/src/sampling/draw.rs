//! From logits to tokens.

use quire_kernels::{Result, SamplingRows, SamplingState, StepCtx, Tensor};

use super::summary::Summary;
use crate::Error;
use crate::device::CudaDevice;
use crate::elementwise::{count, stride};
use crate::launch::launch;
use crate::memory::address;
use crate::module::Kernel;

/// The kernels of a draw.
pub(super) struct Draw {
    scan: Kernel,
    pick: Kernel,
    filter: Kernel,
}

impl Draw {
    pub(super) fn new(device: &CudaDevice) -> std::result::Result<Self, Error> {
        let kernel = |name| device.kernel("sampling", name);
        Ok(Self {
            scan: kernel("sample_scan")?,
            pick: kernel("sample_pick")?,
            filter: kernel("sample_filter")?,
        })
    }

    pub(super) fn sample(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()> {
        let (num_rows, vocab_size) = (rows.logits.num_rows(), rows.logits.num_columns());
        let each = [rows.slots, rows.positions, out].map(Tensor::num_elements);
        assert_eq!(each, [num_rows; 3], "every row has a slot, a position and a place for its token");
        let at_once = Summary::rows_at_once(num_rows, vocab_size);
        for start in (0..num_rows).step_by(at_once) {
            let range = (start, num_rows.min(start + at_once));
            ctx.scope(|ctx| self.run(ctx, &self.pick, (state, rows), Some(out), range))?;
        }
        Ok(())
    }

    /// Leaves what would be drawn from.
    pub(super) fn filter(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
    ) -> Result<()> {
        let (num_rows, vocab_size) = (rows.logits.num_rows(), rows.logits.num_columns());
        let each = [rows.slots, rows.positions].map(Tensor::num_elements);
        assert_eq!(each, [num_rows; 2], "every row has a slot and a position");
        let at_once = Summary::rows_at_once(num_rows, vocab_size);
        for start in (0..num_rows).step_by(at_once) {
            let range = (start, num_rows.min(start + at_once));
            ctx.scope(|ctx| self.run(ctx, &self.filter, (state, rows), None, range))?;
        }
        Ok(())
    }

    /// Sums up some of the rows, and finishes them by `finish`.
    fn run(
        &self,
        ctx: &mut StepCtx,
        finish: &Kernel,
        (state, rows): (&SamplingState, &SamplingRows<'_>),
        out: Option<&Tensor>,
        (start, end): (usize, usize),
    ) -> Result<()> {
        let logits = rows.logits.rows(start, end);
        let summary = Summary::alloc(ctx, end - start, logits.num_columns())?;
        let params = SampleParams {
            logits: address(&logits),
            slots: address(&rows.slots.rows(start, end)),
            positions: address(&rows.positions.rows(start, end)),
            out: out.map_or(0, |out| address(&out.rows(start, end))),
            temperature: address(&state.temperature),
            top_k: address(&state.top_k),
            top_p: address(&state.top_p),
            min_p: address(&state.min_p),
            keys: address(&state.keys),
            segments: summary.segments,
            winners: summary.extra,
            group_keys: summary.group_keys,
            group_sums: summary.group_sums,
            logits_stride: stride(&logits),
            num_rows: count(end - start),
            vocab_size: count(logits.num_columns()),
            num_segments: summary.num_segments,
            unused: 0,
        };
        // SAFETY: the struct is the kernel's; the scratch has its size from the same rows and vocabulary, and slots lie
        // in the state, as the caller vouches.
        unsafe { launch(ctx, &self.scan, summary.scan_grid(), &params) }?;
        // SAFETY: as above; `sample_pick`, which alone writes to `out`, is given one.
        unsafe { launch(ctx, finish, summary.pick_grid(), &params) }
    }
}

/// `SampleParams` of `cuda/sampling.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SampleParams {
    logits: u64,
    slots: u64,
    positions: u64,
    out: u64,
    temperature: u64,
    top_k: u64,
    top_p: u64,
    min_p: u64,
    keys: u64,
    segments: u64,
    winners: u64,
    group_keys: u64,
    group_sums: u64,
    logits_stride: i64,
    num_rows: u32,
    vocab_size: u32,
    num_segments: u32,
    unused: u32,
}
