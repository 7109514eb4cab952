//! The scratch in which rows of logits are summed up (`cuda/sampling.cuh`).

use quire_kernels::{DType, Result, StepCtx};

use crate::elementwise::count;
use crate::launch::Grid;
use crate::memory::address;

/// Tokens of a segment.
const SEGMENT: usize = 4096;

/// Groups of a segment.
const GROUPS: usize = 64;

/// Threads of the block that reads a segment.
const SCAN_THREADS: u32 = 256;

/// Threads of the block that finishes a row.
const PICK_THREADS: u32 = 512;

/// A segment's two words, and for each group its best key and its mass.
const SEGMENT_BYTES: usize = 2 * 8 + GROUPS * (4 + 4);

/// The vocabulary that scratch is planned for; rows of a larger one are handled in several launches.
const PLANNED_VOCAB: usize = 1 << 18;

/// Rows of one launch at most: the grid's second dimension.
const MAX_ROWS: usize = 65_535;

/// Where the summaries of `num_rows` rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// `[num_rows, num_segments]` of 8 bytes: the best token of each segment.
    pub(super) segments: u64,
    /// The same: what the kernel finds in each segment besides.
    pub(super) extra: u64,
    /// `[num_rows, num_segments * GROUPS]` of 4 bytes: the best key of each group.
    pub(super) group_keys: u64,
    /// The same: the mass of each group.
    pub(super) group_sums: u64,
    pub(super) num_segments: u32,
    num_rows: u32,
}

impl Summary {
    /// Scratch for `num_rows` rows, whatever the vocabulary.
    pub(super) fn scratch_bytes(num_rows: usize) -> usize {
        num_rows * row_bytes(PLANNED_VOCAB)
    }

    /// Rows of this vocabulary that one launch may handle within the scratch of `num_rows` rows.
    pub(super) fn rows_at_once(num_rows: usize, vocab_size: usize) -> usize {
        (Self::scratch_bytes(num_rows) / row_bytes(vocab_size)).clamp(1, MAX_ROWS)
    }

    /// Takes the scratch.
    pub(super) fn alloc(ctx: &mut StepCtx, num_rows: usize, vocab_size: usize) -> Result<Self> {
        let num_segments = vocab_size.div_ceil(SEGMENT);
        let num_words = num_rows * num_segments;
        let start = address(&ctx.alloc(DType::U8, &[num_rows * row_bytes(vocab_size)])?);
        let group_keys = start + (num_words * 16) as u64;
        Ok(Self {
            segments: start,
            extra: start + (num_words * 8) as u64,
            group_keys,
            group_sums: group_keys + (num_words * GROUPS * 4) as u64,
            num_segments: count(num_segments),
            num_rows: count(num_rows),
        })
    }

    /// A block a segment.
    pub(super) fn scan_grid(&self) -> Grid {
        let blocks = [self.num_segments, self.num_rows, 1];
        Grid { blocks, threads: SCAN_THREADS, shared_bytes: 0, overlaps: true }
    }

    /// A block a row.
    pub(super) fn pick_grid(&self) -> Grid {
        Grid { blocks: [self.num_rows, 1, 1], threads: PICK_THREADS, shared_bytes: 0, overlaps: true }
    }
}

fn row_bytes(vocab_size: usize) -> usize {
    vocab_size.div_ceil(SEGMENT) * SEGMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_vocabulary_stay_within_the_planned_scratch() {
        for vocab_size in [1, 4096, 4097, 151_936, 262_144, 262_145, 1 << 20] {
            for num_rows in [1, 2, 255, 256, 70_000] {
                let at_once = Summary::rows_at_once(num_rows, vocab_size).min(num_rows);
                let bytes = at_once * row_bytes(vocab_size);
                let planned = Summary::scratch_bytes(num_rows).max(row_bytes(vocab_size));
                assert!((1..=MAX_ROWS).contains(&at_once) && bytes <= planned, "{num_rows} of {vocab_size}");
            }
        }
    }

    #[test]
    fn a_usual_vocabulary_takes_one_launch() {
        assert!(Summary::rows_at_once(256, 151_936) >= 256);
        assert!(Summary::rows_at_once(256, 262_144) >= 256);
        assert_eq!(Summary::rows_at_once(256, 524_288), 128);
    }
}
