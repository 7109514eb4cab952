//! The prefix index: from a block's hash to the block that holds its content.

mod saved;

use std::sync::Arc;

use crate::block::BlockId;
use crate::hash::{BlockHash, BlockHashes, CacheSalt};
use crate::list::NIL;

/// A block and the life of its content: once the content is dropped, the reference is stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRef {
    pub(crate) block: BlockId,
    pub(crate) generation: u32,
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
    num_removed: u64,
    /// Tells this index from every other.
    identity: Arc<()>,
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
            num_removed: 0,
            identity: Arc::default(),
        }
    }

    /// What no other index has.
    pub(crate) fn identity(&self) -> &Arc<()> {
        &self.identity
    }

    /// The cached blocks that hold the beginning of `tokens`, in order.
    pub(crate) fn matches<'a>(
        &'a self,
        tokens: &'a [u32],
        hashes: &'a BlockHashes,
    ) -> impl Iterator<Item = BlockRef> + 'a {
        self.matches_after(&[], tokens, hashes)
    }

    /// The hits behind those that are known.
    pub(crate) fn matches_after<'a>(
        &'a self,
        known: &[BlockRef],
        tokens: &'a [u32],
        hashes: &'a BlockHashes,
    ) -> impl Iterator<Item = BlockRef> + use<'a> {
        let blocks = tokens.chunks_exact(self.block_size).zip(hashes.as_slice()).skip(known.len());
        blocks.scan(known.last().copied(), move |parent, (tokens, hash)| {
            let hit = self.find(*hash, *parent, hashes.salt(), tokens)?;
            *parent = Some(hit);
            Some(hit)
        })
    }

    /// Whether these blocks, a chain of current contents that was found here once, are what would be found at the
    /// beginning of `tokens`.
    pub(crate) fn holds(&self, hits: &[BlockRef], tokens: &[u32], hashes: &BlockHashes) -> bool {
        let Some(last) = hits.last() else { return true };
        let entry = &self.entries[last.block.index()];
        let is_named = hashes.as_slice().get(hits.len() - 1).is_some_and(|hash| hash.0 == entry.hash);
        let blocks = tokens.chunks_exact(self.block_size);
        is_named
            && entry.salt == hashes.salt()
            && blocks.len() >= hits.len()
            && hits.iter().zip(blocks).all(|(hit, tokens)| *self.tokens_of(hit.block) == *tokens)
    }

    /// How many contents have been dropped.
    pub(crate) fn num_removed(&self) -> u64 {
        self.num_removed
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
        self.num_removed += 1;
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
        let same = entry.parent == parent && entry.salt == salt && *self.tokens_of(block) == *tokens;
        same.then(|| self.reference(block))
    }

    fn tokens_of(&self, block: BlockId) -> &[u32] {
        let start = block.index() * self.block_size;
        &self.tokens[start..start + self.block_size]
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

    pub(crate) fn is_current(&self, reference: BlockRef) -> bool {
        let entry = &self.entries[reference.block.index()];
        entry.registered && entry.generation == reference.generation
    }

    fn bucket(&self, hash: u128) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::HOLDERS_BYTES;
    use crate::hash::{HashKey, PrefixHasher};
    use crate::list::Links;

    /// An index of blocks of two tokens that holds `[1, 2] [3, 4]` in blocks 0 and 1, under the hashes 8 and 16, which
    /// fall into one bucket.
    fn index() -> PrefixIndex {
        let mut index = PrefixIndex::new(4, 2);
        let root = register(&mut index, 0, None, (8, &[1, 2])).expect("the index is empty");
        register(&mut index, 1, Some(root), (16, &[3, 4])).expect("its parent is there");
        index
    }

    fn register(
        index: &mut PrefixIndex,
        block: u32,
        parent: Option<BlockRef>,
        (hash, tokens): (u128, &[u32]),
    ) -> Option<BlockRef> {
        match index.register(BlockId(block), parent, (BlockHash(hash), CacheSalt::NONE, tokens)) {
            Registered::New(reference) | Registered::Known(reference) => Some(reference),
            Registered::Blocked(_) | Registered::Unreachable => None,
        }
    }

    #[track_caller]
    fn check(tokens: &[u32], salt: CacheSalt, hashes: &[u128], num_hits: usize) {
        assert_eq!(index().matches(tokens, &BlockHashes::forged(salt, hashes)).count(), num_hits);
    }

    #[test]
    fn a_hit_compares_tokens_parent_and_salt_behind_the_hash() {
        let salt = PrefixHasher::new(HashKey(1, 2), 2).salt(&[b"other"]);
        check(&[1, 2, 3, 4], CacheSalt::NONE, &[8, 16], 2);
        check(&[1, 2, 3, 5], CacheSalt::NONE, &[8, 16], 1);
        check(&[3, 4], CacheSalt::NONE, &[16], 0);
        check(&[1, 2, 3, 4], salt, &[8, 16], 0);
        check(&[1, 2, 3, 4], CacheSalt::NONE, &[9, 16], 0);
    }

    /// Beside the 4 bytes of each token.
    #[test]
    fn the_books_take_at_most_96_bytes_a_block() {
        // The table of buckets has up to twice as many as there are blocks.
        let index = size_of::<Entry>() + 2 * size_of::<u32>();
        let lists = size_of::<BlockId>() + size_of::<Links>();
        let num_bytes = HOLDERS_BYTES + lists + index;
        assert!(num_bytes <= 96, "{num_bytes}");
    }

    #[test]
    fn a_child_is_lost_with_its_parent_and_gives_way_to_a_new_one() {
        let mut index = index();
        index.remove(BlockId(0));
        let hashes = BlockHashes::forged(CacheSalt::NONE, &[8, 16]);
        let root = register(&mut index, 0, None, (8, &[1, 2])).expect("the content was dropped");
        assert_eq!(index.matches(&[1, 2, 3, 4], &hashes).count(), 1, "the generation has changed");
        let content = (BlockHash(16), CacheSalt::NONE, &[3, 4][..]);
        let outcome = index.register(BlockId(2), Some(root), content);
        assert!(matches!(outcome, Registered::Blocked(BlockId(1))));
        index.remove(BlockId(1));
        register(&mut index, 2, Some(root), (16, &[3, 4])).expect("nothing is in the way");
        assert_eq!(index.matches(&[1, 2, 3, 4], &hashes).count(), 2);
        assert!(!index.is_leaf(BlockId(0)) && index.is_leaf(BlockId(2)));
    }

    #[test]
    fn colliding_contents_are_not_registered() {
        let mut index = index();
        assert!(register(&mut index, 2, None, (8, &[7, 7])).is_none());
        assert_eq!(index.matches(&[7, 7], &BlockHashes::forged(CacheSalt::NONE, &[8])).count(), 0);
    }
}
