//! One weight of a linear layer, packed.

use quire_kernels::{Error, HostWeight, Result, WeightError};

use super::layout::{Layout, SourceRows, layout_of};
use crate::Isa;
use crate::buffer::Memory;
use crate::lanes::LANES;
use crate::pool::Pool;

/// Packing is shared out in pieces of about this size.
const PACK_GRAIN_BYTES: usize = 128 << 10;

/// The rows of one weight in groups, the last one padded with rows of zeros.
pub(super) struct Segment {
    pub(super) layout: &'static dyn Layout,
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
    pub(super) fn pack(pool: &Pool, isa: Isa, weight: &HostWeight<'_>) -> Result<Self> {
        let unsupported =
            || Error::Weight { name: weight.name.to_owned(), reason: WeightError::DType(weight.dtype) };
        let layout = layout_of(weight.dtype).ok_or_else(unsupported)?;
        let columns = weight.columns;
        let row_bytes = weight.dtype.bytes_for(columns).expect("the weight was checked");
        let source = SourceRows { bytes: weight.data, row_bytes, columns };
        let group_bytes = layout.group_bytes(columns);
        let groups = Packed::fill(pool, weight.rows.div_ceil(LANES), group_bytes, |group, bytes| {
            layout.pack(isa, &source.group(group), bytes);
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
pub(super) struct Packed(Memory);

impl Packed {
    /// Fills `num` pieces of `piece_bytes` zeroed bytes each, on all threads.
    fn fill<F>(pool: &Pool, num: usize, piece_bytes: usize, fill: F) -> Result<Self>
    where
        F: Fn(usize, &mut [u8]) + Sync,
    {
        // What overflows here is refused as an allocation.
        let memory = Memory::zeroed(num.saturating_mul(piece_bytes))?;
        pool.for_each(num, PACK_GRAIN_BYTES.div_ceil(piece_bytes.max(1)), |pieces| {
            for piece in pieces {
                // SAFETY: the piece lies in the memory, which is initialized and nobody else's yet, and the pool
                // visits each piece once.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(memory.start().add(piece * piece_bytes), piece_bytes)
                };
                fill(piece, bytes);
            }
        });
        Ok(Self(memory))
    }

    /// The bytes.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialized, and since `fill` nobody writes to it.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.num_bytes()) }
    }
}
