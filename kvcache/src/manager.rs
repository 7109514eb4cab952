//! The manager: block tables over one pool, with prefix caching and copy-on-write.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::allocator::{BlockAllocator, BlockUsage};
use crate::block::{BlockId, StepId};
use crate::capacity::Capacity;
use crate::config::KvCacheConfig;
use crate::error::{Inconsistency, NoBlocks, Result};
use crate::eviction::{Eviction, LruLeavesFirst};
use crate::hash::{BlockHashes, PrefixHasher};
use crate::lookup::Lookup;
use crate::pin::PinId;
use crate::prefix::{PrefixIndex, Registered};
use crate::reservation::{Admit, Reservation};
use crate::swap::SwapSpace;
use crate::table::BlockTable;

/// Whether a prompt fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It fits now.
    Now,
    /// It fits once other sequences have given up blocks.
    Later(NoBlocks),
    /// It does not fit even into an empty pool.
    Never {
        /// Blocks that the prompt and one token occupy.
        need: u32,
        /// Blocks that a prompt may ever have.
        have: u32,
    },
}

/// How well the prefix cache has served, in tokens of admitted sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixStats {
    /// Tokens looked up.
    pub query_tokens: u64,
    /// Tokens found.
    pub hit_tokens: u64,
}

impl PrefixStats {
    /// The share of tokens found, in `0.0..=1.0`; zero before the first query.
    pub fn hit_rate(&self) -> f64 {
        if self.query_tokens == 0 { 0.0 } else { self.hit_tokens as f64 / self.query_tokens as f64 }
    }
}

/// Block tables, prefix cache and capacity of one pool.
///
/// A change of a table is in two parts: [`admit`](Self::admit) and [`reserve`](Self::reserve) check and return a
/// guard that borrows pool and table; only the guard's `commit` changes anything, and it cannot fail.
#[derive(Debug)]
pub struct KvCacheManager {
    config: KvCacheConfig,
    capacity: Capacity,
    pub(crate) allocator: BlockAllocator,
    pub(crate) index: PrefixIndex,
    hasher: PrefixHasher,
    pub(crate) stats: PrefixStats,
    pub(crate) swap: SwapSpace,
    pub(crate) pins: BTreeMap<PinId, BlockTable>,
    pub(crate) next_pin: u64,
    pub(crate) num_resets: u32,
    /// The hits of the admission being checked; kept for its capacity.
    pub(crate) lookup: Lookup,
}

impl KvCacheManager {
    /// A manager of an empty pool.
    ///
    /// # Errors
    /// See [`KvCacheConfig::validate`].
    pub fn new(config: KvCacheConfig) -> Result<Self> {
        // Before anything of that size is allocated.
        config.validate()?;
        let eviction = Box::new(LruLeavesFirst::new(config.num_blocks));
        Self::with_eviction(config, eviction)
    }

    /// A manager of an empty pool whose cached contents go in an order of one's own. One that breaks the rules of
    /// [`Eviction`] is found out when a block is wanted, by a panic: it would hand out what somebody holds.
    ///
    /// # Errors
    /// See [`KvCacheConfig::validate`].
    pub fn with_eviction(config: KvCacheConfig, eviction: Box<dyn Eviction>) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            capacity: config.capacity(),
            allocator: BlockAllocator::new(config.num_blocks, eviction),
            index: PrefixIndex::new(config.num_blocks, config.block_size),
            hasher: PrefixHasher::new(config.hash_key, config.block_size),
            stats: PrefixStats::default(),
            swap: SwapSpace::new(config.num_swap_blocks),
            pins: BTreeMap::new(),
            next_pin: 0,
            num_resets: 0,
            lookup: Lookup::default(),
            config,
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// The numbers derived from the pool's size.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// How the blocks are used now.
    pub fn usage(&self) -> BlockUsage {
        self.allocator.usage()
    }

    /// Hits and queries of the prefix cache since the start.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.stats
    }

    /// Computes the hashes that [`admit`](Self::admit) and [`register`](Self::register) take; to be copied to
    /// whichever thread prepares requests.
    pub fn hasher(&self) -> PrefixHasher {
        self.hasher
    }

    /// Whether a prompt of `num_tokens` tokens, and one token more, fits beside what runs. A prefix hit may let in
    /// what this answers with `Later`: it knows lengths only.
    pub fn can_allocate(&self, num_tokens: u32) -> Admission {
        let need = self.capacity.blocks_for(num_tokens.saturating_add(1));
        let have = self.capacity.admissible_blocks();
        if need > have {
            return Admission::Never { need, have };
        }
        match self.available_for(need + self.capacity.watermark_blocks) {
            Ok(()) => Admission::Now,
            Err(refusal) => Admission::Later(refusal),
        }
    }

    /// Tokens at the start of `tokens` that need not be computed. At least the last one must: its logits are wanted.
    pub fn num_cached_tokens(&self, tokens: &[u32], hashes: &BlockHashes) -> u32 {
        self.matches(tokens, hashes).count() as u32 * self.config.block_size
    }

    /// Checks that a whole sequence fits into an empty `table`, with `headroom_blocks` to spare: blocks for all of
    /// `tokens` and for one more, less those that the prefix cache has.
    ///
    /// # Errors
    /// [`NoBlocks`], and nothing has changed. What was found is kept in the table, for when it is asked again.
    ///
    /// # Panics
    /// If the table holds blocks already.
    pub fn admit<'a>(
        &'a mut self,
        table: &'a mut BlockTable,
        tokens: &[u32],
        hashes: &BlockHashes,
        headroom_blocks: u32,
    ) -> std::result::Result<Admit<'a>, NoBlocks> {
        assert!(table.is_empty(), "a sequence is admitted with an empty table");
        let known = table.lookup.take().map(|lookup| *lookup);
        let mut lookup = known.unwrap_or_else(|| std::mem::take(&mut self.lookup).cleared());
        lookup.update((&self.index, &self.allocator), self.usable(tokens), hashes);
        let num_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        // A hit on an unreferenced block takes it out of what is available, so that it counts like a new one.
        let to_take = self.capacity.blocks_for(num_tokens.saturating_add(1)) - lookup.num_live;
        if let Err(refusal) = self.available_for(to_take.saturating_add(headroom_blocks)) {
            table.lookup = Some(Box::new(lookup));
            return Err(refusal);
        }
        self.lookup = lookup;
        Ok(Admit { cache: self, table, num_tokens })
    }

    /// Checks that `table` can be made ready for writing the positions `write`: blocks up to its end, and a copy of
    /// every block in it that another table holds too. A block that only the prefix cache knows besides is written in
    /// place, and forgotten there: so a lone sequence never needs more than its own length. An empty write, as of a reversed
    /// range, needs nothing.
    ///
    /// # Errors
    /// [`NoBlocks`], and nothing has changed.
    pub fn reserve<'a>(
        &'a mut self,
        table: &'a mut BlockTable,
        write: Range<u32>,
    ) -> std::result::Result<Reservation<'a>, NoBlocks> {
        let num_blocks = if write.is_empty() { 0 } else { self.capacity.blocks_for(write.end) as usize };
        let first = (write.start / self.config.block_size) as usize;
        let written = first.min(table.blocks.len())..num_blocks.min(table.blocks.len());
        let shared = |block: &&BlockId| self.is_shared(**block);
        let num_copies = table.blocks.get(written.clone()).map_or(0, |b| b.iter().filter(shared).count());
        let num_new = num_blocks.saturating_sub(table.blocks.len());
        self.available_for((num_new + num_copies) as u32)?;
        Ok(Reservation { cache: self, table, written, num_new })
    }

    /// Whether whoever writes at `position` must copy the block first, since another table holds it too.
    pub fn needs_copy(&self, table: &BlockTable, position: u32) -> bool {
        let block = table.blocks.get((position / self.config.block_size) as usize);
        block.is_some_and(|&block| self.is_shared(block))
    }

    /// A second table that shares the blocks of the first `num_tokens` tokens, a partial last block included: it is
    /// copied by whoever writes into it first.
    pub fn fork(&mut self, table: &BlockTable, num_tokens: u32) -> BlockTable {
        let num_blocks = (self.capacity.blocks_for(num_tokens) as usize).min(table.blocks.len());
        let num_full = (num_tokens / self.config.block_size) as usize;
        let blocks = table.blocks[..num_blocks].to_vec();
        blocks.iter().for_each(|&block| self.allocator.share(block));
        let BlockTable { num_registered, parent, cut, resets, .. } = *table;
        let mut fork = BlockTable { blocks, num_registered, parent, cut, resets, lookup: None };
        if table.num_registered > num_full {
            let last = num_full.checked_sub(1).map(|last| table.blocks[last]);
            fork.parent = last.and_then(|block| self.index.registered(block));
            fork.cut |= last.is_some() && fork.parent.is_none();
            fork.num_registered = num_full;
        }
        fork
    }

    /// Forks `num_forks` times at once, as for `n` answers to one prompt. Of a partial last block each table but the one
    /// that writes last makes a copy, when it writes: `num_forks` copies in all.
    pub fn fork_many(&mut self, table: &BlockTable, num_tokens: u32, num_forks: u32) -> Vec<BlockTable> {
        (0..num_forks).map(|_| self.fork(table, num_tokens)).collect()
    }

    /// Gives up a table's blocks, the last first. Where an open step may still touch them, they are retiring until
    /// that step, `until`, has been committed.
    pub fn release(&mut self, table: BlockTable, until: Option<StepId>) {
        for &block in table.blocks.iter().rev() {
            if let Some(step) = until {
                self.allocator.hold(block, step);
            }
            self.allocator.release(block);
        }
    }

    /// Tells the prefix cache which blocks are full of computed values: those of the first `num_computed_tokens`
    /// of `tokens`, as far as the table has blocks and there are tokens and hashes. What may still be dropped (in flight,
    /// past a finish) must not be counted among them.
    pub fn register(
        &mut self,
        table: &mut BlockTable,
        tokens: &[u32],
        hashes: &BlockHashes,
        num_computed_tokens: u32,
    ) {
        if !self.config.enable_prefix_caching || table.resets != self.num_resets {
            return;
        }
        let block_size = self.config.block_size as usize;
        let num_computed = tokens.len().min(num_computed_tokens as usize);
        let num_full = (num_computed / block_size).min(hashes.as_slice().len()).min(table.blocks.len());
        while table.num_registered < num_full && !table.cut {
            let place = table.num_registered;
            let content = &tokens[place * block_size..(place + 1) * block_size];
            self.register_block(table, place, content, hashes);
            table.num_registered += 1;
        }
    }

    /// Ends a step: blocks that it alone held come free.
    pub fn commit(&mut self, step: StepId) {
        self.allocator.commit(step);
        #[cfg(debug_assertions)]
        self.allocator.check().expect("every block is free, live or cached, and only one of them");
    }

    /// Forgets all contents, as after a device error or a change of weights. Blocks in use stay with their tables,
    /// and what they hold never enters the cache. Pins end: what they kept is gone.
    pub fn reset_prefix_cache(&mut self) {
        self.num_resets += 1;
        for (_, pinned) in std::mem::take(&mut self.pins) {
            self.release(pinned, None);
        }
        for block in (0..self.config.num_blocks).map(BlockId) {
            self.forget(block);
        }
    }

    /// Checks the books: free + live + cached = total, and each block is counted as often as `tables`, which must be
    /// all tables there are but those of transfers and pins, hold it. O(blocks); for tests and debug builds.
    ///
    /// # Errors
    /// The first [`Inconsistency`] found.
    ///
    /// # Panics
    /// If a table holds a block that is none of the pool: it is another manager's.
    pub fn check<'a>(
        &self,
        tables: impl IntoIterator<Item = &'a BlockTable>,
    ) -> std::result::Result<(), Inconsistency> {
        self.allocator.check()?;
        let mut found = vec![0; self.config.num_blocks as usize];
        let mut count = |table: &BlockTable| table.blocks.iter().for_each(|block| found[block.index()] += 1);
        tables.into_iter().for_each(&mut count);
        self.swap.tables().for_each(&mut count);
        self.pins.values().for_each(&mut count);
        for (block, found) in (0..).zip(found) {
            let counted = self.allocator.num_refs(BlockId(block));
            if counted != found {
                return Err(Inconsistency::References { block, counted, found });
            }
        }
        Ok(())
    }

    /// Whether another table counts on the block's content.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.allocator.num_refs(block) > 1
    }

    /// Takes a block that the checks have found to be there, dropping the content of the one evicted for it.
    pub(crate) fn take_block(&mut self) -> BlockId {
        self.allocator.take().unwrap_or_else(|| {
            let index = &self.index;
            let evicted = self.allocator.evict(|block| index.is_leaf(block));
            let block = evicted.expect("a reservation has checked that blocks are available");
            self.index.remove(block);
            block
        })
    }

    fn matches<'a>(
        &'a self,
        tokens: &'a [u32],
        hashes: &'a BlockHashes,
    ) -> impl Iterator<Item = BlockId> + 'a {
        self.index.matches(self.usable(tokens), hashes).map(|hit| hit.block)
    }

    /// Tokens that a hit may stand for: the last must be computed, since its logits are wanted.
    fn usable<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let usable = if self.config.enable_prefix_caching { tokens.len().saturating_sub(1) } else { 0 };
        &tokens[..usable]
    }

    fn available_for(&self, need: u32) -> std::result::Result<(), NoBlocks> {
        let usage = self.usage();
        let available = usage.available();
        if need <= available {
            return Ok(());
        }
        let retiring = usage.retiring + self.swap.num_leaving();
        Err(NoBlocks { need, available, retiring })
    }

    fn register_block(&mut self, table: &mut BlockTable, place: usize, tokens: &[u32], hashes: &BlockHashes) {
        let block = table.blocks[place];
        let content = (hashes.as_slice()[place], hashes.salt(), tokens);
        let mut outcome = self.index.register(block, table.parent, content);
        if let Registered::Blocked(orphan) = outcome {
            self.forget(orphan);
            outcome = self.index.register(block, table.parent, content);
        }
        match outcome {
            Registered::New(reference) => {
                self.allocator.keep(block);
                table.parent = Some(reference);
            }
            Registered::Known(reference) => table.parent = Some(reference),
            Registered::Blocked(_) | Registered::Unreachable => table.cut = true,
        }
    }

    pub(crate) fn forget(&mut self, block: BlockId) {
        self.index.remove(block);
        self.allocator.forget(block);
    }
}
