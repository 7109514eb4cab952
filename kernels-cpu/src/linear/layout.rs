//! What the layouts of packed weights have in common.
//!
//! Sixteen consecutive rows of a weight, a *group*, lie interleaved, so that a lane of a vector computes one
//! output and a column is one step for all sixteen. Each output is summed column after column, in one order
//! whatever the number of activation rows and the instruction set.

use std::ops::Range;

use quire_kernels::{DType, HostWeight};

use super::activation::QuantBlock;
use super::scaled::Scaled;
use super::{decoded, dense, quant};
use crate::Isa;
use crate::access::{Rows, RowsMut};
use crate::lanes::{LANES, Simd};

/// How the groups of a dtype are stored and multiplied.
pub(super) trait Layout: Send + Sync {
    /// Name of the kernel on an instruction set.
    fn kernel(&self, isa: Isa) -> String;

    /// Whether it multiplies quantized activations, not the activations themselves.
    fn takes_quants(&self) -> bool;

    /// Bytes of a group.
    fn group_bytes(&self, columns: usize) -> usize;

    /// How many groups a task should have, or a multiple of it, for so many rows.
    fn grain(&self, num_tokens: usize) -> usize;

    /// Packs up to 16 rows into zeroed bytes.
    fn pack(&self, isa: Isa, source: &SourceRows<'_>, group: &mut [u8]);

    /// Puts the scales that lie beside the rows of a weight, up to 16 from `first_row` on, into the group.
    fn pack_scales(&self, weight: &HostWeight<'_>, first_row: usize, group: &mut [u8]) {
        let _ = (weight, first_row, group);
    }

    /// Multiplies.
    fn multiply(&self, isa: Isa, task: &Task<'_>);

    /// Writes the row in a lane of a group as f32, exactly as `quire_kernels::quant` reads it from the file.
    fn read_row(&self, group: &[u8], lane: usize, out: &mut [f32]);
}

/// The layout of a dtype, where there is one.
pub(super) fn layout_of(dtype: DType) -> Option<Box<dyn Layout>> {
    let blocks = |blocks: decoded::Blocks| -> Box<dyn Layout> { Box::new(blocks) };
    dense::layout_of(dtype)
        .or_else(|| quant::layout_of(dtype))
        .or_else(|| decoded::layout_of(dtype).map(blocks))
}

/// The layout of a weight, where there is one.
pub(super) fn layout_for(weight: &HostWeight<'_>) -> Option<Box<dyn Layout>> {
    match weight.scales {
        None => layout_of(weight.dtype),
        Some(_) => Scaled::of(weight).map(|scaled| -> Box<dyn Layout> { Box::new(scaled) }),
    }
}

/// Rows of a weight as the checkpoint holds them.
pub(super) struct SourceRows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) columns: usize,
}

impl<'a> SourceRows<'a> {
    /// The rows of a group.
    pub(super) fn group(&self, group: usize) -> Self {
        let start = group * LANES * self.row_bytes;
        let end = self.bytes.len().min(start + LANES * self.row_bytes);
        Self { bytes: &self.bytes[start..end], ..*self }
    }

    /// The rows.
    #[inline(always)]
    pub(super) fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks_exact(self.row_bytes)
    }
}

/// A piece of a product: some groups of a weight with some rows of the activations.
pub(super) struct Task<'a> {
    /// All groups of the weight.
    pub(super) weights: &'a [u8],
    pub(super) group_bytes: usize,
    pub(super) columns: usize,
    /// `[num_tokens, columns]`.
    pub(super) x: &'a Rows<'a, f32>,
    /// `[num_tokens, columns / 32]` [`QuantBlock`]s, where a layout of the layer takes them.
    pub(super) quants: Option<&'a Rows<'a, u8>>,
    pub(super) out: &'a RowsMut<'a, f32>,
    /// Columns of `out` that are the weight's.
    pub(super) out_columns: Range<usize>,
    /// For each row of the weight, or empty.
    pub(super) bias: &'a [f32],
    pub(super) groups: Range<usize>,
    pub(super) tokens: Range<usize>,
}

impl Task<'_> {
    /// The bytes of a group.
    #[inline(always)]
    pub(super) fn group(&self, group: usize) -> &[u8] {
        &self.weights[group * self.group_bytes..][..self.group_bytes]
    }

    /// The same piece of one group, whose weights are `weights`.
    pub(super) fn of_group<'a>(&'a self, group: usize, weights: &'a [u8]) -> Task<'a> {
        let rows = group * LANES..self.out_columns.len().min((group + 1) * LANES);
        let bias = if self.bias.is_empty() { self.bias } else { &self.bias[rows.clone()] };
        let out_columns = self.out_columns.start + rows.start..self.out_columns.start + rows.end;
        let tokens = self.tokens.clone();
        Task { weights, group_bytes: weights.len(), out_columns, bias, groups: 0..1, tokens, ..*self }
    }

    /// A quantized row of the activations.
    #[inline(always)]
    pub(super) fn quants(&self, token: usize) -> &[QuantBlock] {
        bytemuck::cast_slice(self.quants.expect("a quantized layer has quants").row(token))
    }

    /// Writes the outputs of a group for a row of the activations.
    #[inline(always)]
    pub(super) fn put<S: Simd>(&self, s: S, token: usize, group: usize, mut sums: S::V) {
        let first = group * LANES;
        let num = LANES.min(self.out_columns.len() - first);
        if !self.bias.is_empty() {
            sums = s.add(sums, s.load_head(&self.bias[first..first + num], 0.0));
        }
        let start = self.out_columns.start + first;
        // SAFETY: the tasks of a product share out its rows and groups, so nobody else writes these outputs.
        let out = unsafe { self.out.slice_mut(token, start..start + num) };
        match out.as_mut_array() {
            Some(out) => s.store(sums, out),
            None => s.store_head(sums, out),
        }
    }
}
