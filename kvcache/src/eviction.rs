//! Which content goes first when room is needed.

use std::fmt;

use crate::block::BlockId;
use crate::list::{Links, List};

/// The order in which unreferenced blocks lose their content. The blocks of a pool are told to it as they come and go;
/// every call is on the hot path of an admission.
///
/// An order names blocks that it was told of, each until it is removed or evicted, and names one as long as there is one.
/// One that does not makes the pool panic when it evicts.
pub trait Eviction: Send + fmt::Debug {
    /// A block is held by nobody any more, and keeps its content.
    fn insert(&mut self, block: BlockId);

    /// A block is held again, or its content is worthless: it is none of the candidates.
    fn remove(&mut self, block: BlockId);

    /// Takes out the block that goes first; `None` if there is none. `is_leaf` says of a block whether no other
    /// block's content continues its own: one that is no leaf takes those behind it along, since nobody would find them.
    fn evict(&mut self, is_leaf: &dyn Fn(BlockId) -> bool) -> Option<BlockId>;

    /// How many candidates there are.
    fn len(&self) -> u32;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All candidates, for checks.
    fn candidates(&self) -> Vec<BlockId>;
}

/// The least recently used first, leaves before what they continue.
///
/// Blocks are released leaves first, so that the first candidate is a leaf, except after two sequences computed the same
/// beginning at the same time: then a few candidates are looked at.
#[derive(Debug)]
pub struct LruLeavesFirst {
    links: Vec<Links>,
    list: List,
}

/// How many candidates are looked at to find a leaf.
const MAX_PROBES: u32 = 8;

impl LruLeavesFirst {
    /// Of a pool of so many blocks; with more it grows when they come.
    pub fn new(num_blocks: u32) -> Self {
        Self { links: vec![Links::NONE; num_blocks as usize], list: List::EMPTY }
    }
}

impl Eviction for LruLeavesFirst {
    fn insert(&mut self, block: BlockId) {
        if block.index() >= self.links.len() {
            self.links.resize(block.index() + 1, Links::NONE);
        }
        self.list.push_back(&mut self.links, block.0);
    }

    fn remove(&mut self, block: BlockId) {
        self.list.remove(&mut self.links, block.0);
    }

    fn evict(&mut self, is_leaf: &dyn Fn(BlockId) -> bool) -> Option<BlockId> {
        for _ in 1..MAX_PROBES.min(self.list.len()) {
            let head = self.list.head()?;
            if is_leaf(BlockId(head)) {
                break;
            }
            self.list.remove(&mut self.links, head);
            self.list.push_back(&mut self.links, head);
        }
        let block = self.list.head()?;
        self.list.remove(&mut self.links, block);
        Some(BlockId(block))
    }

    fn len(&self) -> u32 {
        self.list.len()
    }

    fn candidates(&self) -> Vec<BlockId> {
        self.list.iter(&self.links).map(BlockId).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_leaves_before_it() {
        let mut lru = LruLeavesFirst::new(3);
        let blocks = [0, 1, 2].map(BlockId);
        blocks.iter().for_each(|block| lru.insert(*block));
        assert_eq!((lru.len(), lru.candidates()), (3, blocks.to_vec()));
        assert_eq!(lru.evict(&|block| block != blocks[0]), Some(blocks[1]));
        assert_eq!(lru.evict(&|_| true), Some(blocks[2]));
        assert_eq!(lru.evict(&|_| false), Some(blocks[0]));
        assert_eq!(lru.evict(&|_| true), None);
        assert!(lru.is_empty());
    }
}
