//! The allocator: who holds which block, and which block is handed out next.

mod saved;

use std::collections::VecDeque;

use crate::block::{BlockId, StepId};
use crate::error::Inconsistency;
use crate::eviction::Eviction;

/// How the blocks of a pool are used. The first three add up to the total.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockUsage {
    /// Blocks without content.
    pub free: u32,
    /// Blocks that a table or an open step holds.
    pub live: u32,
    /// Unreferenced blocks that keep their content until they are reused.
    pub cached: u32,
    /// Blocks of the pool.
    pub total: u32,
    /// Live blocks that only open steps hold: they come free with a commit.
    pub retiring: u32,
}

impl BlockUsage {
    /// Blocks that can be handed out now.
    pub fn available(&self) -> u32 {
        self.free + self.cached
    }
}

/// Reference counts and free lists of a pool of blocks. Every operation is O(1) a block and, once the lists of
/// open steps have grown to their size, allocates no heap memory.
///
/// ```text
///            take / evict              release, content worthless
///   free ───────────────────▶ live ────────────────────────────────▶ free
///                            │    ▲
///    release, content kept   │    │ share (a prefix hit)
///                            ▼    │
///                            cached ── evict: see [`Eviction`]
/// ```
///
/// A live block is held by tables (`refs`) and by open steps (`holds`). One that only steps hold is *retiring*.
///
/// # Panics
/// Every method that names a block panics where the pool has none of that number.
#[derive(Debug)]
pub struct BlockAllocator {
    blocks: Vec<Holders>,
    /// A stack: what was touched last is the likeliest to be in a cache of the machine.
    free: Vec<BlockId>,
    cached: Box<dyn Eviction>,
    /// How many blocks are in `cached`, whatever that says of itself.
    num_cached: u32,
    num_retiring: u32,
    /// How often a block has become cached or live again.
    num_moves: u64,
    /// Blocks held by each open step, in the order of steps.
    open: VecDeque<(StepId, Vec<BlockId>)>,
    /// Emptied lists of committed steps, used again.
    spare: Vec<Vec<BlockId>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    refs: u32,
    holds: u32,
    /// Whether the content is worth keeping once nobody holds the block.
    keep: bool,
}

/// What the counts of a block take.
#[cfg(test)]
pub(crate) const HOLDERS_BYTES: usize = size_of::<Holders>();

impl BlockAllocator {
    /// A pool of `num_blocks` free blocks, whose contents go in the order of `eviction`.
    pub fn new(num_blocks: u32, eviction: Box<dyn Eviction>) -> Self {
        Self {
            blocks: vec![Holders::default(); num_blocks as usize],
            free: (0..num_blocks).rev().map(BlockId).collect(),
            cached: eviction,
            num_cached: 0,
            num_retiring: 0,
            num_moves: 0,
            open: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// How the blocks are used now.
    pub fn usage(&self) -> BlockUsage {
        let total = self.blocks.len() as u32;
        let (free, cached) = (self.free.len() as u32, self.num_cached);
        BlockUsage { free, cached, total, live: total - free - cached, retiring: self.num_retiring }
    }

    /// Tables that hold the block.
    pub fn num_refs(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].refs
    }

    /// As long as this number stays, [`is_cached`](Self::is_cached) says of every block what it said before.
    pub(crate) fn num_moves(&self) -> u64 {
        self.num_moves
    }

    /// Whether the block is held by nobody and kept for its content.
    pub fn is_cached(&self, block: BlockId) -> bool {
        let Holders { refs, holds, keep } = self.blocks[block.index()];
        refs == 0 && holds == 0 && keep
    }

    /// Hands out a block without content, referenced once.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.blocks[block.index()].refs = 1;
        Some(block)
    }

    /// Hands out the cached block that goes first, referenced once; the caller forgets its content. `is_leaf` as in
    /// [`Eviction::evict`].
    ///
    /// # Panics
    /// If the order of eviction names a block that is not cached: somebody may hold it.
    pub fn evict(&mut self, is_leaf: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let block = self.cached.evict(&is_leaf)?;
        assert!(
            self.is_cached(block),
            "an evicted block is cached: the order of eviction was not told of {block}"
        );
        self.num_cached -= 1;
        self.num_moves += 1;
        self.blocks[block.index()] = Holders { refs: 1, holds: 0, keep: false };
        Some(block)
    }

    /// Adds a table's reference to a live or cached block.
    ///
    /// # Panics
    /// On a free block, whose content nobody vouches for.
    pub fn share(&mut self, block: BlockId) {
        let Holders { refs, holds, keep } = self.blocks[block.index()];
        match (refs, holds) {
            (0, 0) => {
                assert!(keep, "a shared block is live or cached");
                self.uncache(block);
            }
            (0, _) => self.num_retiring -= 1,
            _ => {}
        }
        self.blocks[block.index()].refs += 1;
    }

    /// Drops a table's reference.
    ///
    /// # Panics
    /// If no table holds the block: it would be freed twice.
    pub fn release(&mut self, block: BlockId) {
        let holders = &mut self.blocks[block.index()];
        assert!(holders.refs > 0, "a released block is held by a table");
        holders.refs -= 1;
        match (holders.refs, holders.holds) {
            (0, 0) => self.park(block),
            (0, _) => self.num_retiring += 1,
            _ => {}
        }
    }

    /// Keeps a live block from being handed out before `step` has been committed.
    ///
    /// # Panics
    /// If no table holds the block: it may be handed out already.
    pub fn hold(&mut self, block: BlockId, step: StepId) {
        assert!(self.blocks[block.index()].refs > 0, "a held block is held by a table first");
        self.blocks[block.index()].holds += 1;
        let place = self.open.partition_point(|(open, _)| *open < step);
        if self.open.get(place).is_none_or(|(open, _)| *open != step) {
            self.open.insert(place, (step, self.spare.pop().unwrap_or_default()));
        }
        self.open[place].1.push(block);
    }

    /// Ends the holds of all steps up to `step`.
    pub fn commit(&mut self, step: StepId) {
        while self.open.front().is_some_and(|(open, _)| *open <= step) {
            let (_, mut held) = self.open.pop_front().expect("the front was just seen");
            held.drain(..).for_each(|block| self.unhold(block));
            self.spare.push(held);
        }
    }

    /// Says that the content of a live block is worth keeping.
    ///
    /// # Panics
    /// If nobody holds the block: what is in it is nobody's.
    pub fn keep(&mut self, block: BlockId) {
        let holders = &mut self.blocks[block.index()];
        assert!(holders.refs > 0 || holders.holds > 0, "a kept block is live");
        holders.keep = true;
    }

    /// Says that the content of a block is worth nothing any more: a cached one becomes free.
    pub fn forget(&mut self, block: BlockId) {
        if self.is_cached(block) {
            self.uncache(block);
            self.free.push(block);
        }
        self.blocks[block.index()].keep = false;
    }

    /// Walks all blocks and checks that every one is where its holders say, and that the counts add up.
    ///
    /// # Errors
    /// The first [`Inconsistency`] found.
    pub fn check(&self) -> Result<(), Inconsistency> {
        let BlockUsage { free, live, cached, total, retiring } = self.usage();
        let held = self.blocks.iter().filter(|holders| holders.refs + holders.holds > 0).count();
        let retired = self.blocks.iter().filter(|holders| holders.refs == 0 && holders.holds > 0).count();
        if held != live as usize || retired != retiring as usize {
            return Err(Inconsistency::Conservation { free, live: held as u32, cached, total });
        }
        let free_are_right = self.free.iter().map(|block| (*block, false));
        let cached_are_right = self.cached.candidates().into_iter().map(|block| (block, true));
        for (block, expect_kept) in free_are_right.chain(cached_are_right) {
            let Holders { refs, holds, keep } = self.blocks[block.index()];
            if refs + holds > 0 || keep != expect_kept {
                return Err(Inconsistency::WrongList { block: block.0 });
            }
        }
        Ok(())
    }

    fn unhold(&mut self, block: BlockId) {
        let holders = &mut self.blocks[block.index()];
        holders.holds -= 1;
        if holders.refs == 0 && holders.holds == 0 {
            self.num_retiring -= 1;
            self.park(block);
        }
    }

    /// Puts a block that nobody holds where it is found again.
    fn park(&mut self, block: BlockId) {
        if self.blocks[block.index()].keep {
            self.cached.insert(block);
            self.num_cached += 1;
            self.num_moves += 1;
        } else {
            self.free.push(block);
        }
    }

    fn uncache(&mut self, block: BlockId) {
        self.cached.remove(block);
        self.num_cached -= 1;
        self.num_moves += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::LruLeavesFirst;

    fn pool(num_blocks: u32) -> BlockAllocator {
        BlockAllocator::new(num_blocks, Box::new(LruLeavesFirst::new(num_blocks)))
    }

    #[test]
    fn a_held_block_comes_free_with_its_step() {
        let mut pool = pool(1);
        let block = pool.take().unwrap();
        pool.hold(block, StepId(7));
        pool.release(block);
        assert_eq!((pool.usage().live, pool.usage().retiring), (1, 1));
        pool.commit(StepId(6));
        assert_eq!(pool.take(), None);
        pool.commit(StepId(7));
        assert_eq!(pool.take(), Some(block));
        pool.check().unwrap();
    }

    #[test]
    fn steps_hold_in_any_order() {
        let mut pool = pool(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        pool.hold(a, StepId(2));
        pool.hold(b, StepId(1));
        pool.release(a);
        pool.release(b);
        pool.commit(StepId(1));
        assert_eq!(pool.usage().free, 1);
        pool.commit(StepId(2));
        assert_eq!(pool.usage().free, 2);
    }

    #[test]
    #[should_panic(expected = "held by a table")]
    fn a_block_is_not_freed_twice() {
        let mut pool = pool(1);
        let block = pool.take().unwrap();
        pool.release(block);
        pool.release(block);
    }

    #[test]
    #[should_panic(expected = "a held block is held by a table first")]
    fn a_free_block_is_not_held() {
        pool(2).hold(BlockId(1), StepId(1));
    }

    #[test]
    #[should_panic(expected = "a kept block is live")]
    fn a_free_block_is_not_kept() {
        pool(2).keep(BlockId(1));
    }

    #[test]
    fn the_usual_order_of_eviction_grows_with_the_pool() {
        let mut pool = BlockAllocator::new(4, Box::new(LruLeavesFirst::new(1)));
        let blocks: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        for block in blocks {
            pool.keep(block);
            pool.release(block);
        }
        assert_eq!(pool.usage().cached, 4);
        pool.check().unwrap();
    }
}
