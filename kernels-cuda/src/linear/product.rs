//! One segment times an input: which kernel, and its launch.

use quire_kernels::{DType, Error, Result, StepCtx, Tensor};

use super::Shared;
use super::format::{Format, num_records};
use super::kernel_set::MANY_SHARED_BYTES;
use super::params::{AddBias, Few, Many, Output, QuantFew, Recode, count};
use super::plan::{self, FewPlan, MAX_FEW_TOKENS};
use super::segment::{Bias, DenseRows, Segment, Storage};
use crate::cublaslt::{ALIGN, Algorithm, CublasLt, Matrices, Shape};
use crate::launch::{Grid, launch, stream};
use crate::memory::address;

/// `out = x Wᵀ (+ bias)` for the rows of a segment.
pub(super) struct Product<'a> {
    pub(super) shared: &'a Shared,
    /// `[num_tokens, columns]`, columns filled up, rows at multiples of 16 bytes.
    pub(super) x: &'a Tensor,
    /// `[num_tokens, rows]`.
    pub(super) out: &'a Tensor,
}

impl Product<'_> {
    /// Enqueues it.
    pub(super) fn run(&self, ctx: &mut StepCtx, segment: &Segment) -> Result<()> {
        let bias = segment.bias.as_ref();
        match segment.storage {
            Storage::Dense => self.dense(ctx, segment.dense_rows(), bias),
            Storage::Records(format) => self.records(ctx, segment, format),
        }
    }

    fn dense(&self, ctx: &mut StepCtx, weight: DenseRows, bias: Option<&Bias>) -> Result<()> {
        let most = plan::max_few_tokens(weight.shape());
        match self.num_tokens() {
            n if n <= most => self.few(ctx, weight, bias),
            n if n <= MAX_FEW_TOKENS && self.shared.library.is_none() => self.few(ctx, weight, bias),
            _ => self.many(ctx, weight, bias),
        }
    }

    /// The kernel for few tokens.
    fn few(&self, ctx: &mut StepCtx, weight: DenseRows, bias: Option<&Bias>) -> Result<()> {
        let (variant, plan) = FewPlan::dense(self.shared.machine, weight.shape(), self.num_tokens());
        let kernel = self.shared.kernels.few(variant);
        let params = Few {
            weight: weight.address,
            x: address(self.x),
            out: self.output(bias),
            columns: count(weight.columns),
            weight_stride: count(weight.columns),
            x_stride: count(self.x.row_stride()),
            row_groups: 1,
        };
        // SAFETY: the addresses are those of whole matrices of these shapes; the kernel takes that many tokens.
        unsafe { launch(ctx, kernel, grid_of(&plan, weight.rows), &params) }
    }

    /// The library, where there is one that takes these matrices; else the own kernel.
    fn many(&self, ctx: &mut StepCtx, weight: DenseRows, bias: Option<&Bias>) -> Result<()> {
        if let Some(library) = &self.shared.library
            && self.is_aligned()
        {
            let narrow = bias.and_then(|bias| bias.narrow.as_ref());
            let fused = narrow.filter(|_| self.out.dtype() == self.x.dtype());
            let shape = Shape {
                rows: weight.rows,
                columns: weight.columns,
                num_tokens: self.num_tokens(),
                dtype: self.x.dtype(),
                out_dtype: self.out.dtype(),
                has_bias: fused.is_some(),
            };
            if let Some(algorithm) = library.algorithm(shape) {
                self.by_library(ctx, library, shape, &algorithm, weight, fused)?;
                return match bias {
                    Some(bias) if fused.is_none() => self.add_bias(ctx, bias),
                    _ => Ok(()),
                };
            }
        }
        self.own(ctx, weight, bias)
    }

    fn by_library(
        &self,
        ctx: &mut StepCtx,
        library: &CublasLt,
        shape: Shape,
        algorithm: &Algorithm,
        weight: DenseRows,
        bias: Option<&Tensor>,
    ) -> Result<()> {
        let matrices = Matrices {
            weight: (weight.address, weight.columns),
            x: (address(self.x), self.x.row_stride()),
            out: (address(self.out), self.out.row_stride()),
            bias: bias.map_or(0, address),
        };
        ctx.scope(|ctx| {
            let workspace = ctx.alloc(DType::U8, &[algorithm.workspace_bytes.max(1)])?;
            let stream = stream(ctx)?;
            // SAFETY: whole matrices of these shapes, aligned as was checked; the workspace is as large as asked.
            let enqueued =
                unsafe { library.multiply(stream, shape, matrices, algorithm, address(&workspace)) };
            enqueued.map_err(|status| Error::DeviceLost {
                device: self.shared.device.context().name().to_owned(),
                reason: format!("cublasLtMatmul returned status {status} for {shape:?}"),
            })
        })
    }

    fn add_bias(&self, ctx: &mut StepCtx, bias: &Bias) -> Result<()> {
        let params = AddBias {
            out: address(self.out),
            bias: address(&bias.exact),
            rows: count(self.out.num_columns()),
            stride: count(self.out.row_stride()),
            is_f32: u32::from(self.out.dtype() == DType::F32),
            pad: 0,
        };
        let grid =
            Grid { blocks: [count(self.num_tokens()), 1, 1], threads: 256, shared_bytes: 0, overlaps: true };
        // SAFETY: a block changes a row of the output, which is as long as the bias.
        unsafe { launch(ctx, &self.shared.kernels.add_bias, grid, &params) }
    }

    /// The own kernel for many tokens.
    fn own(&self, ctx: &mut StepCtx, weight: DenseRows, bias: Option<&Bias>) -> Result<()> {
        let params = Many {
            weight: weight.address,
            x: address(self.x),
            out: self.output(bias),
            columns: count(weight.columns),
            weight_stride: count(weight.columns),
            x_stride: count(self.x.row_stride()),
            num_slices: count(plan::dense_slices(self.shared.machine, weight.shape())),
        };
        let blocks = [count(self.num_tokens().div_ceil(128)), count(weight.rows.div_ceil(128)), 1];
        let grid = Grid { blocks, threads: 256, shared_bytes: MANY_SHARED_BYTES, overlaps: true };
        // SAFETY: the addresses are those of whole matrices of these shapes.
        unsafe { launch(ctx, &self.shared.kernels.many, grid, &params) }
    }

    fn records(&self, ctx: &mut StepCtx, segment: &Segment, format: Format) -> Result<()> {
        if self.num_tokens() <= MAX_FEW_TOKENS {
            return self.few_of_records(ctx, segment, format);
        }
        if self.shared.device.is_deterministic() {
            return self.tiles_of_tokens().try_for_each(|(start, end)| {
                let (x, out) = (self.x.rows(start, end), self.out.rows(start, end));
                Product { x: &x, out: &out, ..*self }.few_of_records(ctx, segment, format)
            });
        }
        self.by_slabs(ctx, segment, format)
    }

    /// Ranges of as many tokens as the kernels for few take.
    fn tiles_of_tokens(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let num_tokens = self.num_tokens();
        (0..num_tokens)
            .step_by(MAX_FEW_TOKENS)
            .map(move |start| (start, num_tokens.min(start + MAX_FEW_TOKENS)))
    }

    fn few_of_records(&self, ctx: &mut StepCtx, segment: &Segment, format: Format) -> Result<()> {
        let shape = [segment.rows, segment.columns];
        let (tile, plan) = FewPlan::records(self.shared.machine, format, shape, self.num_tokens());
        let kernel = &self.shared.kernels.quant_few[format as usize][tile];
        let params = QuantFew {
            weight: address(&segment.memory),
            x: address(self.x),
            out: self.output(segment.bias.as_ref()),
            columns: count(segment.columns),
            x_stride: count(self.x.row_stride()),
            row_groups: 1,
            pad: 0,
        };
        // SAFETY: the addresses are those of whole matrices of these shapes; the kernel takes that many tokens.
        unsafe { launch(ctx, kernel, grid_of(&plan, segment.rows), &params) }
    }

    /// Dequantizes rows into scratch, multiplies them, and goes on with the next.
    fn by_slabs(&self, ctx: &mut StepCtx, segment: &Segment, format: Format) -> Result<()> {
        let (slab_rows, columns) = (plan::slab_rows(segment.padded_columns()), segment.padded_columns());
        ctx.scope(|ctx| {
            let rows = slab_rows.min(segment.rows);
            let slab = ctx.alloc(self.x.dtype(), &[rows, columns])?;
            for first_row in (0..segment.rows).step_by(slab_rows) {
                let end = segment.rows.min(first_row + slab_rows);
                let weight = DenseRows { address: address(&slab), rows: end - first_row, columns };
                self.dequantize(ctx, segment, format, first_row, weight)?;
                let out = self.out.columns(first_row, end);
                let bias = segment.bias.as_ref().map(|bias| bias.rows(first_row, end));
                Product { out: &out, ..*self }.many(ctx, weight, bias.as_ref())?;
            }
            Ok(())
        })
    }

    fn dequantize(
        &self,
        ctx: &mut StepCtx,
        segment: &Segment,
        format: Format,
        first_row: usize,
        to: DenseRows,
    ) -> Result<()> {
        let params = Recode {
            from: address(&segment.memory) + format.bytes_for(first_row, segment.columns) as u64,
            to: to.address,
            rows: count(to.rows),
            columns: count(to.columns),
        };
        debug_assert_eq!(to.columns, segment.padded_columns());
        let blocks = [count(num_records(to.rows, to.columns).div_ceil(8)), 1, 1];
        let grid = Grid { blocks, threads: 256, shared_bytes: 0, overlaps: true };
        // SAFETY: the records of these rows, which start at a whole tile, and scratch for as many dense ones.
        unsafe { launch(ctx, &self.shared.kernels.dequantize[format as usize], grid, &params) }
    }

    fn num_tokens(&self) -> usize {
        self.x.num_rows()
    }

    fn output(&self, bias: Option<&Bias>) -> Output {
        Output {
            out: address(self.out),
            bias: bias.map_or(0, |bias| address(&bias.exact)),
            rows: count(self.out.num_columns()),
            stride: count(self.out.row_stride()),
            num_tokens: count(self.num_tokens()),
            is_f32: u32::from(self.out.dtype() == DType::F32),
        }
    }

    /// Whether the library may take the output as it lies; inputs and weights are always aligned.
    fn is_aligned(&self) -> bool {
        let row_bytes = self.out.row_stride() * self.out.dtype().block_bytes();
        address(self.out).is_multiple_of(ALIGN as u64) && row_bytes.is_multiple_of(ALIGN)
    }
}

impl Bias {
    /// A range of it.
    fn rows(&self, start: usize, end: usize) -> Self {
        Self {
            exact: self.exact.rows(start, end),
            narrow: self.narrow.as_ref().map(|narrow| narrow.rows(start, end)),
        }
    }
}

fn grid_of(plan: &FewPlan, rows: usize) -> Grid {
    Grid {
        blocks: [count(plan.num_blocks(rows)), 1, 1],
        threads: count(plan.threads()),
        shared_bytes: count(plan.shared_bytes()),
        overlaps: true,
    }
}
