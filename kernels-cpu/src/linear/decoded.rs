//! Weights that are turned into f32 a group at a time, while they are multiplied.
//!
//! For what has no product of integers here: block types of few bits ([`Blocks`]), and elements with scales beside
//! them ([`scaled`](super::scaled)). They lie packed as compactly as in the file; a task decodes a group of 16 rows
//! into a tile `[columns, 16]` that stays in the second cache, and multiplies it as dense f32 with all its rows of
//! activations. So inputs are taken as they are, values are exactly those of `quire_kernels::quant`, and a sum is that
//! of a dense layer. Long prompts pay for the decoding once a block of tokens; a single token pays more for it
//! than for its product.

use std::cell::RefCell;

use quire_kernels::{DType, quant};

use super::dense;
use super::layout::{Layout, SourceRows, Task};
use crate::Isa;
use crate::lanes::{LANES, Lanes};

/// A group in f32: a vector for each column.
type Tile = [Lanes];

/// Multiplies each group of a task in f32 with all its tokens. `decode` fills the tile from the bytes of a group.
pub(super) fn multiply(isa: Isa, task: &Task<'_>, decode: impl Fn(&[u8], &mut Tile)) {
    thread_local! {
        static TILE: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
    }
    TILE.with_borrow_mut(|tile| {
        if tile.len() < task.columns {
            tile.resize(task.columns, [0.0; LANES]);
        }
        let tile = &mut tile[..task.columns];
        for group in task.groups.clone() {
            decode(task.group(group), tile);
            dense::multiply_f32(isa, &task.of_group(group, bytemuck::cast_slice(tile)));
        }
    });
}

/// The layout of a block type: the rows of a group as they lie in the file, one after the other.
pub(super) struct Blocks(pub(super) DType);

/// The layout of a block type without a product of its own.
pub(super) fn layout_of(dtype: DType) -> Option<Blocks> {
    matches!(dtype, DType::Q2K | DType::Q3K | DType::IQ4NL | DType::IQ4XS).then_some(Blocks(dtype))
}

impl Blocks {
    fn row_bytes(&self, columns: usize) -> usize {
        self.0.bytes_for(columns).expect("the weight was checked")
    }
}

impl Layout for Blocks {
    fn kernel(&self, isa: Isa) -> String {
        format!("{} decoded x f32 {isa}", self.0)
    }

    fn takes_quants(&self) -> bool {
        false
    }

    fn grain(&self, _: usize) -> usize {
        1
    }

    fn group_bytes(&self, columns: usize) -> usize {
        LANES * self.row_bytes(columns)
    }

    fn pack(&self, _: Isa, source: &SourceRows<'_>, group: &mut [u8]) {
        group[..source.bytes.len()].copy_from_slice(source.bytes);
    }

    fn multiply(&self, isa: Isa, task: &Task<'_>) {
        let row_bytes = self.row_bytes(task.columns);
        let (block_bytes, block_len) = (self.0.block_bytes(), self.0.block_len());
        multiply(isa, task, |group, tile| {
            for (lane, row) in group.chunks_exact(row_bytes).enumerate() {
                let mut values = [0.0; MAX_BLOCK_LEN];
                for (bytes, columns) in row.chunks_exact(block_bytes).zip(tile.chunks_exact_mut(block_len)) {
                    let values = &mut values[..block_len];
                    quant::dequantize(self.0, bytes, values);
                    columns.iter_mut().zip(values).for_each(|(column, value)| column[lane] = *value);
                }
            }
        });
    }

    fn read_row(&self, group: &[u8], lane: usize, out: &mut [f32]) {
        let row_bytes = self.row_bytes(out.len());
        quant::dequantize(self.0, &group[lane * row_bytes..][..row_bytes], out);
    }
}

/// Elements of the longest block.
const MAX_BLOCK_LEN: usize = 256;
