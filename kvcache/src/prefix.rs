//! The prefix index: from a block's hash to the block that holds its content.

use crate::block::BlockId;
use crate::hash::{BlockHash, BlockHashes, CacheSalt};
use crate::list::NIL;

/// A block and the life of its content: once the content is dropped, the reference is stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRef {
    pub(crate) block: BlockId,
    generation: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    hash: u128,
    salt: CacheSalt,
    parent: Option<BlockRef>,
    /// The next entry of the same bucket.
    next: u32,
    /// Registered blocks that name this one as their parent.
    num_children: u32,
    /// Raised whenever the content is dropped.
    generation: u32,
    registered: bool,
}

/// A hash table with chained buckets whose links live in the entries: one entry a block, sized once, never grown.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    block_size: usize,
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    /// The tokens of every registered block, to compare on a hit.
    tokens: Vec<u32>,
}

/// What became of an attempt to register a block.
pub(crate) enum Registered {
    /// The block now stands for its content.
    New(BlockRef),
    /// Another block already does.
    Known(BlockRef),
    /// A block that nobody can reach any more, since its parent's content is gone, stands in the way.
    Blocked(BlockId),
    /// The parent's content is gone, so that nobody could reach the block; or two contents have one hash.
    Unreachable,
}

impl PrefixIndex {
    pub(crate) fn new(num_blocks: u32, block_size: u32) -> Self {
        let entry = Entry {
            hash: 0,
            salt: CacheSalt::NONE,
            parent: None,
            next: NIL,
            num_children: 0,
            generation: 0,
            registered: false,
        };
        let (num_blocks, block_size) = (num_blocks as usize, block_size as usize);
        Self {
            block_size,
            buckets: vec![NIL; num_blocks.next_power_of_two()],
            entries: vec![entry; num_blocks],
            tokens: vec![0; num_blocks * block_size],
        }
    }

    /// The cached blocks that hold the beginning of `tokens`, in order.
    pub(crate) fn matches<'a>(
        &'a self,
        tokens: &'a [u32],
        hashes: &'a BlockHashes,
    ) -> impl Iterator<Item = BlockRef> + 'a {
        let blocks = tokens.chunks_exact(self.block_size).zip(hashes.as_slice());
        blocks.scan(None, move |parent, (tokens, hash)| {
            let hit = self.find(*hash, *parent, hashes.salt(), tokens)?;
            *parent = Some(hit);
            Some(hit)
        })
    }

    /// Makes `block`, which now holds `tokens` after `parent`, findable.
    pub(crate) fn register(
        &mut self,
        block: BlockId,
        parent: Option<BlockRef>,
        content: (BlockHash, CacheSalt, &[u32]),
    ) -> Registered {
        let (hash, salt, tokens) = content;
        if parent.is_some_and(|parent| !self.is_current(parent)) {
            return Registered::Unreachable;
        }
        if let Some(known) = self.lookup(hash) {
            let same = self.find(hash, parent, salt, tokens).map(Registered::Known);
            return same.unwrap_or_else(|| self.in_the_way(known));
        }
        let start = block.index() * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        let bucket = self.bucket(hash.0);
        let entry = &mut self.entries[block.index()];
        debug_assert!(!entry.registered, "a block is registered once a life");
        (entry.hash, entry.salt, entry.parent, entry.registered) = (hash.0, salt, parent, true);
        entry.next = std::mem::replace(&mut self.buckets[bucket], block.0);
        if let Some(parent) = parent {
            self.entries[parent.block.index()].num_children += 1;
        }
        Registered::New(self.reference(block))
    }

    /// Drops what is known of a block's content.
    pub(crate) fn remove(&mut self, block: BlockId) {
        if !self.entries[block.index()].registered {
            return;
        }
        self.unlink(block);
        let entry = &mut self.entries[block.index()];
        entry.registered = false;
        entry.generation = entry.generation.wrapping_add(1);
        entry.num_children = 0;
        if let Some(parent) = entry.parent.take().filter(|parent| self.is_current(*parent)) {
            self.entries[parent.block.index()].num_children -= 1;
        }
    }

    pub(crate) fn is_leaf(&self, block: BlockId) -> bool {
        self.entries[block.index()].num_children == 0
    }

    /// The block as a parent, if its content is findable.
    pub(crate) fn registered(&self, block: BlockId) -> Option<BlockRef> {
        self.entries[block.index()].registered.then(|| self.reference(block))
    }

    fn find(
        &self,
        hash: BlockHash,
        parent: Option<BlockRef>,
        salt: CacheSalt,
        tokens: &[u32],
    ) -> Option<BlockRef> {
        let block = self.lookup(hash)?;
        let entry = &self.entries[block.index()];
        let start = block.index() * self.block_size;
        let same = entry.parent == parent
            && entry.salt == salt
            && self.tokens[start..start + self.block_size] == *tokens;
        same.then(|| self.reference(block))
    }

    fn in_the_way(&self, known: BlockId) -> Registered {
        let orphaned = self.entries[known.index()].parent.is_some_and(|parent| !self.is_current(parent));
        if orphaned { Registered::Blocked(known) } else { Registered::Unreachable }
    }

    fn lookup(&self, hash: BlockHash) -> Option<BlockId> {
        let mut at = self.buckets[self.bucket(hash.0)];
        while at != NIL && self.entries[at as usize].hash != hash.0 {
            at = self.entries[at as usize].next;
        }
        (at != NIL).then_some(BlockId(at))
    }

    fn unlink(&mut self, block: BlockId) {
        let Entry { hash, next, .. } = self.entries[block.index()];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == block.0 {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.entries[at as usize].next != block.0 {
            at = self.entries[at as usize].next;
        }
        self.entries[at as usize].next = next;
    }

    fn reference(&self, block: BlockId) -> BlockRef {
        BlockRef { block, generation: self.entries[block.index()].generation }
    }

    fn is_current(&self, reference: BlockRef) -> bool {
        let entry = &self.entries[reference.block.index()];
        entry.registered && entry.generation == reference.generation
    }

    fn bucket(&self, hash: u128) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
