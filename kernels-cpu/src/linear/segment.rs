//! One weight of a linear layer, packed.

use std::ops::Range;
use std::sync::Arc;

use quire_kernels::{Error, HostWeight, Result, WeightError};

use super::layout::{Layout, SourceRows, layout_for};
use crate::Isa;
use crate::buffer::Memory;
use crate::lanes::LANES;
use crate::pool::Pool;

/// Packing is shared out in pieces of about this size.
const PACK_GRAIN_BYTES: usize = 128 << 10;

/// The rows of one weight in groups, the last one padded with rows of zeros.
pub(super) struct Segment {
    pub(super) layout: Box<dyn Layout>,
    pub(super) rows: usize,
    pub(super) group_bytes: usize,
    pub(super) groups: Packed,
    /// One for each row, or none.
    pub(super) bias: Vec<f32>,
}

impl Segment {
    /// Packs a weight that has been checked.
    ///
    /// # Errors
    ///
    /// [`Error::Weight`] for a dtype without a layout, [`Error::OutOfMemory`].
    pub(super) fn pack(
        memory: &mut PackedMemory,
        pool: &Pool,
        isa: Isa,
        weight: &HostWeight<'_>,
    ) -> Result<Self> {
        let unsupported =
            || Error::Weight { name: weight.name.to_owned(), reason: WeightError::DType(weight.dtype) };
        let layout = layout_for(weight).ok_or_else(unsupported)?;
        let columns = weight.columns;
        let row_bytes = weight.dtype.bytes_for(columns).expect("the weight was checked");
        let source = SourceRows { bytes: weight.data, row_bytes, columns };
        let group_bytes = layout.group_bytes(columns);
        let groups = memory.fill(pool, weight.rows.div_ceil(LANES), group_bytes, |group, bytes| {
            layout.pack(isa, &source.group(group), bytes);
            layout.pack_scales(weight, group * LANES, bytes);
        })?;
        let bias = weight.bias.map_or_else(Vec::new, <[f32]>::to_vec);
        Ok(Self { layout, rows: weight.rows, group_bytes, groups, bias })
    }

    /// Number of groups.
    pub(super) fn num_groups(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes that it takes.
    pub(super) fn num_bytes(&self) -> usize {
        self.groups.bytes().len() + size_of_val(self.bias.as_slice())
    }

    /// Writes a row as f32.
    pub(super) fn read_row(&self, row: usize, out: &mut [f32]) {
        let group = &self.groups.bytes()[row / LANES * self.group_bytes..][..self.group_bytes];
        self.layout.read_row(group, row % LANES, out);
    }
}

/// Bytes that do not change any more.
pub(super) struct Packed {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Packed {
    /// The bytes.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the memory, is initialized, and since `PackedMemory::fill` nobody writes to it.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(self.range.start), self.range.len()) }
    }
}

/// Where packed weights come from: one after the other out of large runs of memory. Small allocations of their own
/// would lie in small pages, and a product of one row is as fast as its weights come in.
#[derive(Default)]
pub(super) struct PackedMemory {
    last: Option<(Arc<Memory>, usize)>,
}

/// A run of memory. What is never used of the last one is never touched, so it costs address space only.
const RUN_BYTES: usize = 64 << 20;

/// Where pieces start.
const ALIGN: usize = 64;

impl PackedMemory {
    /// Fills `num` pieces of `piece_bytes` zeroed bytes each, on all threads.
    fn fill<F>(&mut self, pool: &Pool, num: usize, piece_bytes: usize, fill: F) -> Result<Packed>
    where
        F: Fn(usize, &mut [u8]) + Sync,
    {
        // What overflows here is refused as an allocation.
        let packed = self.take(num.saturating_mul(piece_bytes))?;
        pool.for_each(num, PACK_GRAIN_BYTES.div_ceil(piece_bytes.max(1)), |pieces| {
            for piece in pieces {
                let start = packed.range.start + piece * piece_bytes;
                // SAFETY: the piece lies in the memory, which is initialized, in a range that was given out once, to
                // this call; and the pool visits each piece once.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(packed.memory.start().add(start), piece_bytes) };
                fill(piece, bytes);
            }
        });
        Ok(packed)
    }

    /// Bytes that nobody else gets.
    fn take(&mut self, num_bytes: usize) -> Result<Packed> {
        let (memory, start) = match self.last.take() {
            Some((memory, used)) if num_bytes <= memory.num_bytes() - used => (memory, used),
            _ => (Arc::new(Memory::zeroed(num_bytes.max(RUN_BYTES))?), 0),
        };
        let end = start + num_bytes;
        let used = end.next_multiple_of(ALIGN).min(memory.num_bytes());
        self.last = Some((memory.clone(), used));
        Ok(Packed { memory, range: start..end })
    }
}
