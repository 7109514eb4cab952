//! Elements with scales beside them: grouped integers (GPTQ, AWQ), 8-bit floats and integers with scales for rows,
//! squares or the whole weight.
//!
//! ```text
//! group of 16 rows: | elements, a vector a column; of 4 bits, two columns a vector | scales, a vector of f32 a block column |
//!                   | zero points, a vector of bytes a block column, where there are any |
//! ```
//!
//! They are decoded while they are multiplied ([`decoded`](super::decoded)): `(element - zero) · scale` as
//! `quire_kernels::quant` has it, a column of 16 rows at a time.

use std::ops::Range;

use quire_kernels::{DType, HostWeight, quant};

use super::decoded;
use super::layout::{Layout, SourceRows, Task};
use crate::Isa;
use crate::lanes::{self, LANES, Lanes, Program, Simd};

/// The layout of a weight with scales. It holds those of all its rows until they are packed, and no longer.
pub(super) struct Scaled {
    dtype: DType,
    block_columns: usize,
    has_zeros: bool,
    /// The block column of each column, where they are not in order.
    column_groups: Option<Vec<u32>>,
    num_block_columns: usize,
}

impl Scaled {
    /// For a weight that has been checked; `None` where it has no scales, or elements of another kind.
    pub(super) fn of(weight: &HostWeight<'_>) -> Option<Self> {
        let scales = weight.scales.as_ref()?;
        supports(weight.dtype).then(|| Self {
            dtype: weight.dtype,
            block_columns: scales.block[1],
            has_zeros: scales.zeros.is_some(),
            column_groups: scales.column_groups.map(<[u32]>::to_vec),
            num_block_columns: scales.blocks_per_row(weight.columns),
        })
    }

    fn places(&self, columns: usize) -> Places {
        let elements = columns.div_ceil(self.dtype.block_len()) * LANES;
        let scales = elements + size_of::<Lanes>() * self.num_block_columns;
        let zeros = scales + if self.has_zeros { LANES * self.num_block_columns } else { 0 };
        Places { elements: 0..elements, scales: elements..scales, zeros: scales..zeros }
    }

    /// The block column of a column.
    #[inline(always)]
    fn block_of(&self, column: usize) -> usize {
        match &self.column_groups {
            Some(groups) => groups[column] as usize,
            None => column / self.block_columns,
        }
    }

    #[inline(always)]
    fn group<'a>(&self, bytes: &'a [u8], columns: usize) -> Group<'a> {
        let Places { elements, scales, zeros } = self.places(columns);
        Group {
            elements: bytes[elements].as_chunks().0,
            scales: bytemuck::cast_slice(&bytes[scales]),
            zeros: bytes[zeros].as_chunks().0,
        }
    }
}

/// Whether elements of this dtype can have scales beside them.
pub(super) fn supports(dtype: DType) -> bool {
    matches!(dtype, DType::U4 | DType::U8 | DType::I8 | DType::F8E4M3 | DType::F8E5M2)
}

/// Where the parts of a group lie.
struct Places {
    elements: Range<usize>,
    scales: Range<usize>,
    zeros: Range<usize>,
}

/// The parts of a group.
#[derive(Clone, Copy)]
struct Group<'a> {
    elements: &'a [[u8; LANES]],
    scales: &'a [Lanes],
    zeros: &'a [[u8; LANES]],
}

impl Layout for Scaled {
    fn kernel(&self, isa: Isa) -> String {
        format!("{} with scales decoded x f32 {isa}", self.dtype)
    }

    fn takes_quants(&self) -> bool {
        false
    }

    fn grain(&self, _: usize) -> usize {
        1
    }

    /// Whole vectors, so that the scales of each group lie aligned.
    fn group_bytes(&self, columns: usize) -> usize {
        self.places(columns).zeros.end.next_multiple_of(size_of::<Lanes>())
    }

    fn pack(&self, _: Isa, source: &SourceRows<'_>, group: &mut [u8]) {
        for (lane, row) in source.rows().enumerate().take(LANES) {
            for (i, &byte) in row.iter().enumerate() {
                group[i * LANES + lane] = byte;
            }
        }
    }

    fn pack_scales(&self, weight: &HostWeight<'_>, first_row: usize, group: &mut [u8]) {
        let scales = weight.scales.as_ref().expect("a scaled layout is for a weight with scales");
        let places = self.places(weight.columns);
        let (front, zeros) = group.split_at_mut(places.scales.end);
        let vectors: &mut [Lanes] = bytemuck::cast_slice_mut(&mut front[places.scales]);
        for lane in 0..LANES.min(weight.rows - first_row) {
            let first = (first_row + lane) / scales.block[0] * self.num_block_columns;
            for (i, vector) in vectors.iter_mut().enumerate() {
                vector[lane] = scales.scales[first + i];
            }
            if let Some(given) = scales.zeros {
                for i in 0..self.num_block_columns {
                    zeros[i * LANES + lane] = given[first + i];
                }
            }
        }
    }

    fn multiply(&self, isa: Isa, task: &Task<'_>) {
        decoded::multiply(isa, task, |group, tile| {
            let group = self.group(group, task.columns);
            lanes::run(isa, Decode { layout: self, group, tile });
        });
    }

    fn read_row(&self, group: &[u8], lane: usize, out: &mut [f32]) {
        let group = self.group(group, out.len());
        let elements: Vec<u8> = group.elements.iter().map(|vector| vector[lane]).collect();
        quant::dequantize(self.dtype, &elements, out);
        for (column, value) in out.iter_mut().enumerate() {
            let block = self.block_of(column);
            let zero = group.zeros.get(block).map_or(0.0, |zeros| f32::from(zeros[lane]));
            *value = (*value - zero) * group.scales[block][lane];
        }
    }
}

/// Decodes a group.
struct Decode<'a> {
    layout: &'a Scaled,
    group: Group<'a>,
    tile: &'a mut [Lanes],
}

impl Program for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.layout.dtype {
            DType::U4 => self.columns(s, |column, vector: &[u8; LANES]| {
                s.load_u8(&vector.map(|byte| if column % 2 == 0 { byte & 0x0f } else { byte >> 4 }))
            }),
            DType::U8 => self.columns(s, |_, vector| s.load_u8(vector)),
            DType::I8 => self.columns(s, |_, vector| s.load_i8(vector)),
            DType::F8E4M3 => self.columns(s, |_, vector| s.load_f8e4m3(vector)),
            DType::F8E5M2 => self.columns(s, |_, vector| s.load_f8e5m2(vector)),
            other => unreachable!("{other} is not packed with scales"),
        }
    }
}

impl Decode<'_> {
    #[inline(always)]
    fn columns<S: Simd>(&mut self, s: S, load: impl Fn(usize, &[u8; LANES]) -> S::V) {
        let elements_per_vector = self.layout.dtype.block_len();
        for (column, out) in self.tile.iter_mut().enumerate() {
            let block = self.layout.block_of(column);
            let element = load(column, &self.group.elements[column / elements_per_vector]);
            let element = match self.group.zeros.get(block) {
                Some(zeros) => s.sub(element, s.load_u8(zeros)),
                None => element,
            };
            s.store(s.mul(element, s.load(&self.group.scales[block])), out);
        }
    }
}
