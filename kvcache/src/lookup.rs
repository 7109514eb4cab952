//! What the prefix cache has of one sequence, kept from one look-up to the next.

use crate::allocator::BlockAllocator;
use crate::hash::BlockHashes;
use crate::prefix::{BlockRef, PrefixIndex};
use crate::saved::Saved;

/// The hits of a sequence. One that is refused asks again at every step: what was found is found again without hashes and
/// tokens being compared, and without a walk as long as no content was dropped and no block was parked or taken up.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    pub(crate) hits: Vec<BlockRef>,
    /// Hits that somebody holds.
    pub(crate) num_live: u32,
    /// What the counts of changes were.
    version: (u64, u64),
}

impl Lookup {
    /// Forgets what was found, but not the memory for it.
    pub(crate) fn clear(&mut self) {
        self.hits.clear();
        self.num_live = 0;
    }

    /// Brings the hits up to date: as if all of `tokens` were looked up.
    pub(crate) fn update(
        &mut self,
        (index, allocator): (&PrefixIndex, &BlockAllocator),
        tokens: &[u32],
        hashes: &BlockHashes,
    ) {
        let version = (index.num_removed(), allocator.num_moves());
        let is_live = |hit: &BlockRef| !allocator.is_cached(hit.block);
        if self.version != version {
            let num_current = self.hits.iter().take_while(|hit| index.is_current(**hit)).count();
            self.hits.truncate(num_current);
            self.num_live = self.hits.iter().filter(|hit| is_live(hit)).count() as u32;
            self.version = version;
        }
        let num_known = self.hits.len();
        let more = index.matches_after(&self.hits, tokens, hashes);
        self.hits.extend(more);
        self.num_live += self.hits[num_known..].iter().filter(|hit| is_live(hit)).count() as u32;
        debug_assert!(
            index.matches(tokens, hashes).eq(self.hits.iter().copied())
                && self.hits.iter().filter(|hit| is_live(hit)).count() as u32 == self.num_live,
            "what is kept is what would be found"
        );
    }
}

/// It is found again: nothing of it is saved.
impl Saved for Lookup {
    fn save(&self, _words: &mut Vec<u64>) {}

    fn restore(_words: &mut &[u64]) -> Option<Self> {
        Some(Self::default())
    }
}
