//! Contents that stay: beginnings that an operator knows will be asked for again.

use crate::hash::BlockHashes;
use crate::manager::KvCacheManager;
use crate::table::BlockTable;

/// A beginning that is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PinId(pub u64);

/// Why a beginning was not pinned. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The cache does not have it, or not all of it.
    #[error("{cached_tokens} of the {num_tokens} tokens in full blocks are cached")]
    NotCached {
        /// Tokens in full blocks.
        num_tokens: u32,
        /// Those of them that the cache has.
        cached_tokens: u32,
    },
    /// There would be more pinned than the cap allows.
    #[error("{need_bytes} bytes to be pinned beside {used_bytes}, max_pinned_bytes is {max_pinned_bytes}")]
    OverCap {
        /// Bytes of the beginning.
        need_bytes: u64,
        /// Bytes pinned already.
        used_bytes: u64,
        /// The cap.
        max_pinned_bytes: u64,
    },
}

impl KvCacheManager {
    /// Keeps the full blocks at the beginning of `tokens` from being evicted, until [`unpin`](Self::unpin). A block that
    /// is pinned twice counts twice. The room for pins is set aside from the start, as `max_pinned_bytes` says: what is
    /// pinned keeps no sequence from ending.
    ///
    /// # Errors
    /// A [`PinError`], and nothing has changed.
    pub fn pin(&mut self, tokens: &[u32], hashes: &BlockHashes) -> Result<PinId, PinError> {
        let block_size = self.config().block_size;
        let wanted = tokens.len() / block_size as usize;
        let blocks: Vec<_> = self.index.matches(tokens, hashes).map(|hit| hit.block).collect();
        if blocks.len() < wanted || wanted == 0 {
            let [num_tokens, cached_tokens] = [wanted, blocks.len()].map(|num| num as u32 * block_size);
            return Err(PinError::NotCached { num_tokens, cached_tokens });
        }
        let need = blocks.len() as u32;
        if self.num_pinned_blocks() + need > self.capacity().pinnable_blocks {
            let block_bytes = self.config().block_bytes();
            return Err(PinError::OverCap {
                need_bytes: u64::from(need) * block_bytes,
                used_bytes: u64::from(self.num_pinned_blocks()) * block_bytes,
                max_pinned_bytes: self.config().max_pinned_bytes,
            });
        }
        blocks.iter().for_each(|&block| self.allocator.share(block));
        let id = PinId(self.next_pin);
        self.next_pin += 1;
        self.pins.insert(id, BlockTable { blocks, ..BlockTable::new() });
        Ok(id)
    }

    /// Lets a pinned beginning go: it stays in the cache until its turn comes. False if there is no such pin.
    pub fn unpin(&mut self, pin: PinId) -> bool {
        let Some(table) = self.pins.remove(&pin) else { return false };
        self.release(table, None);
        true
    }

    /// Blocks that pins hold.
    pub fn num_pinned_blocks(&self) -> u32 {
        self.pins.values().map(BlockTable::num_blocks).sum()
    }
}
