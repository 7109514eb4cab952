//! Block tables: a sequence's blocks in order.

use crate::block::BlockId;
use crate::lookup::Lookup;
use crate::prefix::BlockRef;

/// The blocks of one sequence, in the order of its positions: position `p` is in slot `p % block_size` of block
/// `p / block_size` of the table.
///
/// A table is a set of references into the pool of the manager that filled it, and is for that manager alone: another panics
/// over it, or mixes up its books. It is not `Clone` (see [`KvCacheManager::fork`]), and an end of life
/// goes through [`KvCacheManager::release`]: a table that is merely dropped leaks its blocks.
///
/// [`KvCacheManager::fork`]: crate::KvCacheManager::fork
/// [`KvCacheManager::release`]: crate::KvCacheManager::release
#[derive(Debug, Default)]
pub struct BlockTable {
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that the prefix cache has been told of.
    pub(crate) num_registered: usize,
    /// The cached block that holds the content of the last of those; not always the table's own.
    pub(crate) parent: Option<BlockRef>,
    /// Whether the chain of cached parents has been lost: later blocks could not be found.
    pub(crate) cut: bool,
    /// The reset count of the cache when the first block was taken: later resets bar the content from the cache.
    pub(crate) resets: u32,
    /// Of an empty table: what was found when the sequence was refused.
    pub(crate) lookup: Option<Box<Lookup>>,
}

impl BlockTable {
    /// A table without blocks.
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), num_registered: 0, parent: None, cut: false, resets: 0, lookup: None }
    }

    /// The blocks, in the order of positions.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// How many blocks the sequence holds.
    pub fn num_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Leading blocks that the prefix cache has been told of.
    pub fn num_registered_blocks(&self) -> u32 {
        self.num_registered as u32
    }

    /// Whether the sequence holds none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
