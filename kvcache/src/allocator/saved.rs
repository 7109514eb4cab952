//! The allocator's lists as words. Counts of references are not among them: the tables are, and they are counted again.

use std::collections::VecDeque;

use super::BlockAllocator;
use crate::block::{BlockId, StepId};
use crate::saved::Saved;

impl BlockAllocator {
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        self.free.save(words);
        self.cached.candidates().save(words);
        self.open.save(words);
    }

    /// Fills a pool of which all blocks are free; `is_kept` says of a block whether its content is worth keeping. Blocks
    /// that are neither free nor cached have no reference yet, but for those of open steps.
    pub(crate) fn restore(&mut self, words: &mut &[u64], is_kept: impl Fn(BlockId) -> bool) -> Option<()> {
        let (free, cached): (Vec<BlockId>, Vec<BlockId>) = Saved::restore(words)?;
        let open: VecDeque<(StepId, Vec<BlockId>)> = Saved::restore(words)?;
        let mut is_listed = vec![false; self.blocks.len()];
        for block in free.iter().chain(&cached) {
            if std::mem::replace(is_listed.get_mut(block.index())?, true) {
                return None;
            }
        }
        for block in open.iter().flat_map(|(_, held)| held) {
            if *is_listed.get(block.index())? {
                return None;
            }
            self.blocks[block.index()].holds += 1;
        }
        for (block, holders) in (0..).map(BlockId).zip(&mut self.blocks) {
            holders.keep = is_kept(block);
        }
        cached.iter().for_each(|block| self.cached.insert(*block));
        self.num_cached = cached.len() as u32;
        self.num_retiring = self.blocks.iter().filter(|holders| holders.holds > 0).count() as u32;
        (self.free, self.open) = (free, open);
        Some(())
    }

    /// Counts a restored table's reference; false for a block that is none of the pool.
    pub(crate) fn adopt(&mut self, block: BlockId) -> bool {
        let Some(holders) = self.blocks.get_mut(block.index()) else { return false };
        self.num_retiring -= u32::from(holders.refs == 0 && holders.holds > 0);
        holders.refs += 1;
        true
    }
}
