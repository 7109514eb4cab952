//! A packed layer.

use std::sync::Arc;

use quire_kernels::{Activation, DType, HostWeight, Linear, Result, StepCtx, Tensor};

use super::Shared;
use super::params::{Embed, QuantEmbed, count};
use super::product::Product;
use super::segment::{COLUMN_ALIGN, Segment, Storage};
use crate::launch::{Grid, launch};
use crate::memory::address;

/// One or more weights that read the same input.
pub(super) struct PackedLinear {
    shared: Arc<Shared>,
    segments: Vec<Segment>,
    columns: usize,
    kernel: String,
}

impl PackedLinear {
    /// Of what was packed from these weights.
    pub(super) fn new(shared: Arc<Shared>, segments: Vec<Segment>, weights: &[HostWeight<'_>]) -> Self {
        let mut names: Vec<_> = weights.iter().map(|weight| shared.kernel_name(weight.dtype)).collect();
        names.dedup();
        Self { shared, segments, columns: weights[0].columns, kernel: names.join(" + ") }
    }

    /// The input as the kernels read it.
    fn input<'a>(&self, activation: &'a Activation) -> &'a Tensor {
        let x = match self.columns % COLUMN_ALIGN {
            0 => &activation.x,
            _ => activation.prepared.first().expect("the activation was laid out here"),
        };
        let is_aligned = address(x).is_multiple_of(16) && x.row_stride().is_multiple_of(8);
        assert!(is_aligned || x.num_elements() == 0, "rows of {x:?} start at multiples of 16 bytes");
        x
    }

    fn embed_segment(
        &self,
        ctx: &mut StepCtx,
        segment: &Segment,
        first_row: usize,
        [ids, out]: [&Tensor; 2],
    ) -> Result<()> {
        let blocks = [count(ids.num_elements()), 1, 1];
        let grid = Grid { blocks, threads: 256, shared_bytes: 0, overlaps: true };
        let kernels = &self.shared.kernels;
        match segment.storage {
            Storage::Dense => {
                let params = Embed {
                    weight: address(&segment.memory),
                    ids: address(ids),
                    out: address(out),
                    first_row: count(first_row),
                    rows: count(segment.rows),
                    columns: count(segment.columns),
                    weight_stride: count(segment.padded_columns()),
                    out_stride: count(out.row_stride()),
                    pad: 0,
                };
                // SAFETY: a block writes the row of its token, from a row of the segment.
                unsafe { launch(ctx, &kernels.embed, grid, &params) }
            }
            Storage::Records(format) => {
                let params = QuantEmbed {
                    records: address(&segment.memory),
                    ids: address(ids),
                    out: address(out),
                    first_row: count(first_row),
                    rows: count(segment.rows),
                    columns: count(segment.columns),
                    out_stride: count(out.row_stride()),
                };
                // SAFETY: as above.
                unsafe { launch(ctx, &kernels.quant_embed[format as usize], grid, &params) }
            }
        }
    }
}

impl Linear for PackedLinear {
    fn in_features(&self) -> usize {
        self.columns
    }

    fn out_features(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    fn num_bytes(&self) -> usize {
        self.segments.iter().map(Segment::num_bytes).sum()
    }

    fn kernel(&self) -> String {
        self.kernel.clone()
    }

    fn forward(&self, ctx: &mut StepCtx, x: &Activation, out: &Tensor) -> Result<()> {
        let x = self.input(x);
        let dtype = self.shared.device.activation_dtype();
        assert_eq!(x.num_columns(), self.columns.next_multiple_of(COLUMN_ALIGN), "features of the input");
        assert_eq!(x.dtype(), dtype, "type of the input");
        assert_eq!(out.dims(), [x.num_rows(), self.out_features()], "shape of the output");
        assert!(out.dtype() == dtype || out.dtype() == DType::F32, "type of the output");
        if x.num_rows() == 0 {
            return Ok(());
        }
        let mut first_row = 0;
        for segment in self.segments.iter().filter(|segment| segment.rows > 0) {
            let out = out.columns(first_row, first_row + segment.rows);
            Product { shared: &self.shared, x, out: &out }.run(ctx, segment)?;
            first_row += segment.rows;
        }
        Ok(())
    }

    fn embed(&self, ctx: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        assert_eq!(out.dims(), [ids.num_elements(), self.columns], "shape of the output");
        assert_eq!(out.dtype(), DType::F32, "type of the residual stream");
        let mut first_row = 0;
        for segment in &self.segments {
            self.embed_segment(ctx, segment, first_row, [ids, out])?;
            first_row += segment.rows;
        }
        Ok(())
    }
}
