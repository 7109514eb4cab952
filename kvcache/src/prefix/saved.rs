//! The index as words.

use super::{BlockRef, PrefixIndex};
use crate::block::BlockId;
use crate::hash::{BlockHash, CacheSalt};
use crate::saved::Saved;

impl PrefixIndex {
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        for entry in &self.entries {
            entry.generation.save(words);
            entry.registered.save(words);
            if entry.registered {
                BlockHash(entry.hash).low_bits().save(words);
                entry.salt.low_bits().save(words);
                entry.parent.save(words);
            }
        }
    }

    /// Fills an index that knows nothing. Of tokens nothing is kept: all are zero, as they are in a replay.
    pub(crate) fn restore(&mut self, words: &mut &[u64]) -> Option<()> {
        for block in 0..self.entries.len() {
            self.entries[block].generation = u32::restore(words)?;
            if bool::restore(words)? {
                let hash = BlockHash::from_low_bits(u64::restore(words)?);
                let salt = CacheSalt::from_low_bits(u64::restore(words)?);
                self.link(BlockId(block as u32), hash, salt, Option::restore(words)?);
            }
        }
        self.count_children()
    }

    fn link(&mut self, block: BlockId, hash: BlockHash, salt: CacheSalt, parent: Option<BlockRef>) {
        let bucket = self.bucket(hash.0);
        let entry = &mut self.entries[block.index()];
        (entry.hash, entry.salt, entry.parent, entry.registered) = (hash.0, salt, parent, true);
        entry.next = std::mem::replace(&mut self.buckets[bucket], block.0);
    }

    /// A child counts as long as its parent's content is there. `None` where a parent is no block of the pool.
    fn count_children(&mut self) -> Option<()> {
        for place in 0..self.entries.len() {
            let Some(parent) = self.entries[place].parent else { continue };
            if self.entries.get(parent.block.index())?.generation == parent.generation {
                let parent = &mut self.entries[parent.block.index()];
                parent.num_children += u32::from(parent.registered);
            }
        }
        Some(())
    }

    /// Whether a reference is to a block of the pool.
    pub(crate) fn has(&self, reference: BlockRef) -> bool {
        reference.block.index() < self.entries.len()
    }
}
