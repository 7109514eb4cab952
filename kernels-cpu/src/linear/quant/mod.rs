//! Block-quantized weights, at about their packed size.
//!
//! The weights of 16 rows and 32 columns form a *block*: each lane holds a row, and a vector of 64 bytes holds a
//! quad (four consecutive columns) of each. A group is two planes, so that vectors stay aligned:
//!
//! ```text
//! group of 16 rows:  | scales of block 0, 1, 2, ... | integers of block 0, 1, 2, ... |
//! 4 bits, a block:   4 vectors, quad j in the low and quad j + 4 in the high nibbles of vector j
//! 5 bits:            a vector more: bit j of a byte is the high bit of that byte in quad j
//! 6 bits:            two vectors more: bits 2i and 2i + 1 belong to quad i of the first or the last four
//! 8 bits:            8 vectors, a quad each
//! ```
//!
//! A row's product with a column block is `scale · x.scale · Σ q x + minimum · x.scale · Σ x`, the sums in
//! integers, exact; these are added up block after block in f32.

mod format;
mod integers;
mod scales;
mod tile;

use std::marker::PhantomData;

use quire_kernels::DType;

use self::format::{Format, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use self::integers::Integers;
use self::scales::Scales;
use self::tile::Multiply;
use super::activation::BLOCK_LEN;
use super::layout::{Layout, SourceRows, Task};
use crate::Isa;
use crate::lanes::{self, LANES, Program, Simd};

/// The layout of a quantized dtype.
pub(super) fn layout_of(dtype: DType) -> Option<Box<dyn Layout>> {
    Some(match dtype {
        DType::Q4_0 => Box::new(Blocks::<Q4_0>(PhantomData)),
        DType::Q4_1 => Box::new(Blocks::<Q4_1>(PhantomData)),
        DType::Q5_0 => Box::new(Blocks::<Q5_0>(PhantomData)),
        DType::Q5_1 => Box::new(Blocks::<Q5_1>(PhantomData)),
        DType::Q8_0 => Box::new(Blocks::<Q8_0>(PhantomData)),
        DType::Q4K => Box::new(Blocks::<Q4K>(PhantomData)),
        DType::Q5K => Box::new(Blocks::<Q5K>(PhantomData)),
        DType::Q6K => Box::new(Blocks::<Q6K>(PhantomData)),
        _ => return None,
    })
}

/// The layout of format `F`.
struct Blocks<F>(PhantomData<F>);

/// One element of a format's plane of scales.
type Entry<F> = <<F as Format>::Scales as Scales>::Entry;
/// The integers of a block.
type Block<F> = <<F as Format>::Integers as Integers>::Block;

impl<F: Format> Blocks<F> {
    /// Elements of a row that share an entry of scales: a block of the file format.
    const SPAN: usize = F::Scales::BLOCKS * BLOCK_LEN;

    /// Bytes of the plane of scales, filled up to whole vectors.
    fn scales_bytes(columns: usize) -> usize {
        (columns / Self::SPAN * size_of::<Entry<F>>()).next_multiple_of(64)
    }

    /// The two planes of a group.
    #[inline(always)]
    fn planes(group: &[u8], columns: usize) -> (&[Entry<F>], &[Block<F>]) {
        let (scales, integers) = group.split_at(Self::scales_bytes(columns));
        let scales = &scales[..columns / Self::SPAN * size_of::<Entry<F>>()];
        (bytemuck::cast_slice(scales), bytemuck::cast_slice(integers))
    }
}

impl<F: Format> Layout for Blocks<F> {
    fn kernel(&self, isa: Isa) -> String {
        format!("{} x q8 {isa}", F::DTYPE)
    }

    fn takes_quants(&self) -> bool {
        true
    }

    fn grain(&self, _: usize) -> usize {
        1
    }

    fn group_bytes(&self, columns: usize) -> usize {
        Self::scales_bytes(columns) + columns / BLOCK_LEN * size_of::<Block<F>>()
    }

    fn pack(&self, isa: Isa, source: &SourceRows<'_>, group: &mut [u8]) {
        lanes::run(isa, Pack::<F> { source, group, format: PhantomData });
    }

    fn multiply(&self, isa: Isa, task: &Task<'_>) {
        lanes::run(isa, Multiply::<F> { task, format: PhantomData });
    }

    fn read_row(&self, group: &[u8], lane: usize, out: &mut [f32]) {
        let (scales, blocks) = Self::planes(group, out.len());
        let halves = F::Scales::HALVES;
        for (i, out) in out.chunks_exact_mut(BLOCK_LEN / halves).enumerate() {
            let (block, half) = (i / halves, i % halves);
            let entry = &scales[block / F::Scales::BLOCKS];
            let (scale, minimum) = F::Scales::get(entry, block % F::Scales::BLOCKS, half, lane);
            for (column, out) in out.iter_mut().enumerate() {
                let integer = F::Integers::get(&blocks[block], lane, half * 16 + column);
                let product = scale * (i32::from(integer) - F::OFFSET) as f32;
                *out = if F::Scales::HAS_MINIMUM { product + minimum } else { product };
            }
        }
    }
}

/// Packs a group, row after row.
struct Pack<'a, F> {
    source: &'a SourceRows<'a>,
    group: &'a mut [u8],
    format: PhantomData<F>,
}

impl<F: Format> Program for Pack<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let columns = self.source.columns;
        let (scales, blocks) = self.group.split_at_mut(Blocks::<F>::scales_bytes(columns));
        let scales = &mut scales[..columns / Blocks::<F>::SPAN * size_of::<Entry<F>>()];
        let entries: &mut [Entry<F>] = bytemuck::cast_slice_mut(scales);
        let blocks: &mut [Block<F>] = bytemuck::cast_slice_mut(blocks);
        let blocks_per_entry = F::Scales::BLOCKS;
        for (lane, row) in self.source.rows().enumerate().take(LANES) {
            let spans = row.chunks_exact(F::DTYPE.block_bytes());
            let places = entries.iter_mut().zip(blocks.chunks_exact_mut(blocks_per_entry));
            for (bytes, (entry, blocks)) in spans.zip(places) {
                F::read_scales(bytes, lane, entry);
                for (block_idx, block) in blocks.iter_mut().enumerate() {
                    F::Integers::put(block, lane, F::read_quads(bytes, block_idx));
                }
            }
        }
    }
}
