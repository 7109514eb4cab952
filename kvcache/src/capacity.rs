//! How many tokens, blocks and sequences fit.

/// The size of a pool, and every number derived from it, so that no caller repeats a rounding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Blocks in the pool.
    pub num_blocks: u32,
    /// Tokens a block holds.
    pub block_size: u32,
    /// Blocks that admission leaves alone while other sequences run, as room for those to grow.
    pub watermark_blocks: u32,
    /// Blocks set aside for pinned beginnings.
    pub pinnable_blocks: u32,
}

impl Capacity {
    /// Blocks that `num_tokens` tokens occupy. A block of no tokens, which no manager accepts, counts as one of one.
    pub fn blocks_for(&self, num_tokens: u32) -> u32 {
        num_tokens.div_ceil(self.block_size.max(1))
    }

    /// Tokens that fit in the whole pool.
    pub fn num_tokens(&self) -> u64 {
        u64::from(self.num_blocks) * u64::from(self.block_size)
    }

    /// Blocks that a prompt may ever be given: the pool less its watermark and what may be pinned.
    pub fn admissible_blocks(&self) -> u32 {
        self.num_blocks.saturating_sub(self.watermark_blocks).saturating_sub(self.pinnable_blocks)
    }

    /// The longest sequence that fits alone, prompt and output together.
    pub fn max_len_that_fits(&self) -> u32 {
        let num_blocks = u64::from(self.num_blocks.saturating_sub(self.pinnable_blocks));
        u32::try_from(num_blocks * u64::from(self.block_size)).unwrap_or(u32::MAX)
    }

    /// How many sequences of `max_model_len` tokens fit at once; a fraction below one says that not even one does.
    pub fn concurrency_at(&self, max_model_len: u32) -> f64 {
        f64::from(self.num_blocks) / f64::from(self.blocks_for(max_model_len).max(1))
    }

    /// Blocks that `num_seqs` sequences of `max_model_len` tokens need together.
    pub fn blocks_for_sequences(&self, num_seqs: u32, max_model_len: u32) -> u64 {
        u64::from(num_seqs) * u64::from(self.blocks_for(max_model_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_block_counts_as_a_block() {
        let capacity = Capacity { num_blocks: 8, block_size: 16, watermark_blocks: 1, pinnable_blocks: 0 };
        assert_eq!([0, 1, 16, 17, 201].map(|n| capacity.blocks_for(n)), [0, 1, 1, 2, 13]);
        assert_eq!(capacity.max_len_that_fits(), 128);
        assert_eq!(capacity.admissible_blocks(), 7);
        let pinned = Capacity { pinnable_blocks: 2, ..capacity };
        assert_eq!((pinned.max_len_that_fits(), pinned.admissible_blocks()), (96, 5));
        assert_eq!(capacity.concurrency_at(256), 0.5);
        assert_eq!(capacity.blocks_for_sequences(3, 17), 6);
    }

    #[test]
    fn numbers_that_no_manager_accepts_answer_too() {
        let none = Capacity { num_blocks: 1, block_size: 0, watermark_blocks: 2, pinnable_blocks: u32::MAX };
        assert_eq!((none.blocks_for(5), none.admissible_blocks(), none.max_len_that_fits()), (5, 0, 0));
    }
}
