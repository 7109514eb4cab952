//! A packed layer: the segments of its weights, and how a product is shared out among threads.

use std::ops::Range;

use quire_kernels::{Activation, HostWeight, InputPrecision, Linear, Result, StepCtx, Tensor};

use super::activation::BLOCK_LEN;
use super::layout::Task;
use super::segment::{PackedMemory, Segment};
use crate::access::{Rows, RowsMut};
use crate::device::CpuDevice;
use crate::lanes::LANES;

/// One or more weights that read the same input.
pub(super) struct PackedLinear {
    device: CpuDevice,
    columns: usize,
    segments: Vec<Segment>,
}

impl PackedLinear {
    /// Packs weights that have been checked.
    ///
    /// # Errors
    ///
    /// Those of [`Segment::pack`].
    pub(super) fn pack(
        device: &CpuDevice,
        memory: &mut PackedMemory,
        weights: &[HostWeight<'_>],
    ) -> Result<Self> {
        let session = device.session();
        let pack = |weight| Segment::pack(memory, session.pool(), device.isa(), weight);
        let segments = weights.iter().map(pack).collect::<Result<_>>()?;
        drop(session);
        Ok(Self { device: device.clone(), columns: weights[0].columns, segments })
    }

    /// Writes a row of the weights, counted through all segments.
    fn read_row(&self, mut row: usize, out: &mut [f32]) {
        for segment in &self.segments {
            if row < segment.rows {
                return segment.read_row(row, out);
            }
            row -= segment.rows;
        }
        panic!("ids lie within the rows");
    }

    fn takes_quants(&self) -> bool {
        self.segments.iter().any(|segment| segment.layout.takes_quants())
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
        let mut names: Vec<_> =
            self.segments.iter().map(|segment| segment.layout.kernel(self.device.isa())).collect();
        names.dedup();
        names.join(" + ")
    }

    fn input_precision(&self) -> InputPrecision {
        match self.takes_quants() {
            true => InputPrecision::Int8 { block_len: BLOCK_LEN },
            false => InputPrecision::Exact,
        }
    }

    fn forward(&self, _: &mut StepCtx, x: &Activation, out: &Tensor) -> Result<()> {
        assert_eq!(x.x.num_columns(), self.columns, "features of the input");
        assert_eq!(out.dims(), [x.x.num_rows(), self.out_features()], "shape of the output");
        let quants =
            self.takes_quants().then(|| x.prepared.first().expect("the activation was laid out here"));
        let mut session = self.device.session();
        let (pool, [x, q], [out]) = session.open([&x.x, quants.unwrap_or(&x.x)], [out]);
        let quants = quants.map(|_| q.rows());
        let product = Product::new(self, x.rows(), quants, out.rows());
        pool.for_each(product.num_units(), product.grain(), |units| product.run(units));
        Ok(())
    }

    fn embed(&self, _: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        assert_eq!(out.dims(), [ids.num_elements(), self.columns], "shape of the output");
        let mut session = self.device.session();
        let (pool, [ids], [out]) = session.open([ids], [out]);
        let ids = ids.slice::<i32>();
        out.rows::<f32>().for_each(pool, 8, |token, out| {
            let row = usize::try_from(ids[token]).expect("ids lie within the rows");
            self.read_row(row, out);
        });
        Ok(())
    }
}

/// Activation rows that meet a group before the next one comes: at most so many bytes, which stay in the second
/// cache, and a multiple of every tile.
const TOKEN_BLOCK_BYTES: usize = 256 << 10;
const TOKEN_BLOCK_MULTIPLE: usize = 24;
const MAX_TOKEN_BLOCK: usize = 240;

/// Work that is worth a claim of the pool.
const GRAIN_NS: usize = 1000;

/// Rough speeds that units are made comparable with: weights read once, and products done.
const BYTES_PER_NS: usize = 16;
const PRODUCTS_PER_NS: usize = 64;

/// The product of a layer with its input, cut into units of a group and a block of tokens.
struct Product<'a> {
    layer: &'a PackedLinear,
    x: Rows<'a, f32>,
    quants: Option<Rows<'a, u8>>,
    out: RowsMut<'a, f32>,
    num_groups: usize,
    token_block: usize,
}

impl<'a> Product<'a> {
    fn new(
        layer: &'a PackedLinear,
        x: Rows<'a, f32>,
        quants: Option<Rows<'a, u8>>,
        out: RowsMut<'a, f32>,
    ) -> Self {
        let num_groups = layer.segments.iter().map(Segment::num_groups).sum();
        let rows = TOKEN_BLOCK_BYTES / (size_of::<f32>() * layer.columns).max(1);
        let rows = rows.clamp(TOKEN_BLOCK_MULTIPLE, MAX_TOKEN_BLOCK);
        let token_block = rows / TOKEN_BLOCK_MULTIPLE * TOKEN_BLOCK_MULTIPLE;
        Self { layer, x, quants, out, num_groups, token_block }
    }

    fn num_units(&self) -> usize {
        self.x.len().div_ceil(self.token_block) * self.num_groups
    }

    /// Units that are worth a claim.
    fn grain(&self) -> usize {
        let num_tokens = self.x.len().min(self.token_block);
        let products = num_tokens * self.layer.columns * LANES;
        let of_segment = |segment: &Segment| {
            let unit_ns = segment.group_bytes / BYTES_PER_NS + products / PRODUCTS_PER_NS;
            GRAIN_NS.div_ceil(unit_ns.max(1)).next_multiple_of(segment.layout.grain(num_tokens))
        };
        self.layer.segments.iter().map(of_segment).max().unwrap_or(1)
    }

    /// Units are in order of their token blocks, then of their groups.
    fn run(&self, units: Range<usize>) {
        let mut start = units.start;
        while start < units.end {
            let block = start / self.num_groups;
            let first_unit = block * self.num_groups;
            let end = units.end.min(first_unit + self.num_groups);
            let first_token = block * self.token_block;
            let tokens = first_token..self.x.len().min(first_token + self.token_block);
            self.multiply(tokens, start - first_unit..end - first_unit);
            start = end;
        }
    }

    /// Multiplies some tokens with some groups, counted through all segments.
    fn multiply(&self, tokens: Range<usize>, groups: Range<usize>) {
        let (mut first_group, mut first_column) = (0, 0);
        for segment in &self.layer.segments {
            let end_group = first_group + segment.num_groups();
            let (start, end) = (groups.start.max(first_group), groups.end.min(end_group));
            if start < end {
                let task = Task {
                    weights: segment.groups.bytes(),
                    group_bytes: segment.group_bytes,
                    columns: self.layer.columns,
                    x: &self.x,
                    quants: self.quants.as_ref(),
                    out: &self.out,
                    out_columns: first_column..first_column + segment.rows,
                    bias: &segment.bias,
                    groups: start - first_group..end - first_group,
                    tokens: tokens.clone(),
                };
                segment.layout.multiply(self.layer.device.isa(), &task);
            }
            first_group = end_group;
            first_column += segment.rows;
        }
    }
}
