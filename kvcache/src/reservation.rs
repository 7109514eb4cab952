//! Guards between check and commit.

use std::ops::Range;

use crate::block::{BlockCopy, StepId};
use crate::manager::KvCacheManager;
use crate::swap::{Direction, OpenTransfer, SwappedTable, Transfer};
use crate::table::BlockTable;

/// A sequence that has been found to fit. Nothing changes unless it is committed.
#[must_use = "nothing is reserved until `commit`"]
#[derive(Debug)]
pub struct Admit<'a> {
    pub(crate) cache: &'a mut KvCacheManager,
    pub(crate) table: &'a mut BlockTable,
    pub(crate) num_tokens: u32,
}

impl Admit<'_> {
    /// Tokens at the beginning that the prefix cache has.
    pub fn num_cached_tokens(&self) -> u32 {
        self.cache.lookup.hits.len() as u32 * self.cache.config().block_size
    }

    /// Fills the table with the cached blocks and with new ones for the rest of the tokens, and returns how many
    /// tokens the cached ones hold.
    pub fn commit(self) -> u32 {
        let Self { cache, table, num_tokens } = self;
        let num_cached_tokens = fill(cache, table, num_tokens);
        if cache.config().enable_prefix_caching {
            cache.stats.query_tokens += u64::from(num_tokens);
            cache.stats.hit_tokens += u64::from(num_cached_tokens);
        }
        num_cached_tokens
    }

    /// Fills the table like [`commit`](Self::commit), for a sequence that comes back from the host: blocks that the
    /// prefix cache still has are shared, the others are to be copied before a step reads them. Returns the copies, if
    /// there are any, and how many tokens are computed once they are done. The host's blocks come free with the
    /// transfer.
    ///
    /// # Panics
    /// Where it is seen that another manager made the table.
    pub fn commit_swapped(self, swapped: SwappedTable) -> (Option<Transfer>, u32) {
        let Self { cache, table, num_tokens } = self;
        let num_cached_tokens = fill(cache, table, num_tokens);
        table.resets = swapped.resets;
        let num_computed_tokens = num_cached_tokens.max(swapped.num_tokens.min(num_tokens));
        let num_hits = (num_cached_tokens / cache.config().block_size) as usize;
        let pairs = table.blocks.iter().copied().zip(swapped.blocks.iter().copied());
        let blocks: Vec<_> = pairs.skip(num_hits).collect();
        if blocks.is_empty() {
            cache.swap.give_back(swapped.blocks);
            return (None, num_computed_tokens);
        }
        let id = cache.swap.start(OpenTransfer { host: swapped.blocks, ..OpenTransfer::default() });
        (Some(Transfer { id, direction: Direction::In, blocks }), num_computed_tokens)
    }
}

/// Fills an empty table for a sequence that has been found to fit.
fn fill(cache: &mut KvCacheManager, table: &mut BlockTable, num_tokens: u32) -> u32 {
    let lookup = std::mem::take(&mut cache.lookup);
    let hits = &lookup.hits;
    hits.iter().for_each(|hit| cache.allocator.share(hit.block));
    *table = BlockTable {
        blocks: std::mem::take(&mut table.blocks),
        num_registered: hits.len(),
        parent: hits.last().copied(),
        cut: false,
        resets: cache.num_resets,
        lookup: None,
    };
    table.blocks.extend(hits.iter().map(|hit| hit.block));
    let num_cached_tokens = hits.len() as u32 * cache.config().block_size;
    cache.lookup = lookup;
    for _ in table.num_blocks()..cache.capacity().blocks_for(num_tokens) {
        table.blocks.push(cache.take_block());
    }
    num_cached_tokens
}

/// Room for a write that has been found to be there. Nothing changes unless it is committed.
#[must_use = "nothing is reserved until `commit`"]
#[derive(Debug)]
pub struct Reservation<'a> {
    pub(crate) cache: &'a mut KvCacheManager,
    pub(crate) table: &'a mut BlockTable,
    /// Places in the table, before growth, that are written.
    pub(crate) written: Range<usize>,
    pub(crate) num_new: usize,
}

/// What a reservation changed in its table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Growth {
    /// Blocks appended to the table.
    pub num_new: usize,
    /// Shared blocks replaced by copies of their own, to be made before the step.
    pub copies: Vec<TableCopy>,
}

/// A place of a table that was given a copy of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableCopy {
    /// The place in the table.
    pub table_idx: u32,
    /// The copy: the table held `src`, and now holds `dst`.
    pub copy: BlockCopy,
}

impl Reservation<'_> {
    /// Takes the blocks, for a write in `step`: the sources of copies are not handed out before it is committed.
    pub fn commit(self, step: StepId) -> Growth {
        let Self { cache, table, written, num_new } = self;
        let mut copies = Vec::new();
        for place in written {
            let src = table.blocks[place];
            if cache.is_shared(src) {
                let dst = cache.take_block();
                cache.allocator.hold(src, step);
                cache.allocator.release(src);
                table.blocks[place] = dst;
                copies.push(TableCopy { table_idx: place as u32, copy: BlockCopy { src, dst } });
            } else {
                cache.forget(src);
            }
        }
        for _ in 0..num_new {
            table.blocks.push(cache.take_block());
        }
        Growth { num_new, copies }
    }
}
