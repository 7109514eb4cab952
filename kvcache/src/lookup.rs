//! What the prefix cache has of one sequence, kept from one look-up to the next.

use std::sync::Arc;

use crate::allocator::BlockAllocator;
use crate::hash::BlockHashes;
use crate::prefix::{BlockRef, PrefixIndex};
use crate::saved::Saved;

/// The hits of a sequence. One that is refused asks again at every step: what was found is not searched for again, and not
/// walked as long as no content was dropped and no block was parked or taken up. That it is the same sequence in the same
/// pool is compared, not believed: hits of other tokens or of another salt would hand out another's cache.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    pub(crate) hits: Vec<BlockRef>,
    /// Hits that somebody holds.
    pub(crate) num_live: u32,
    /// What the counts of changes were.
    version: (u64, u64),
    /// The pool that was searched.
    pool: Option<Arc<()>>,
}

impl Lookup {
    /// Of nothing, with the memory of this one.
    pub(crate) fn cleared(mut self) -> Self {
        self.clear();
        self
    }

    /// Brings the hits up to date: as if all of `tokens` were looked up.
    pub(crate) fn update(
        &mut self,
        (index, allocator): (&PrefixIndex, &BlockAllocator),
        tokens: &[u32],
        hashes: &BlockHashes,
    ) {
        if !self.pool.as_ref().is_some_and(|pool| Arc::ptr_eq(pool, index.identity())) {
            self.clear();
            self.pool = Some(index.identity().clone());
        }
        let version = (index.num_removed(), allocator.num_moves());
        let is_live = |hit: &BlockRef| !allocator.is_cached(hit.block);
        if self.version != version {
            let num_current = self.hits.iter().take_while(|hit| index.is_current(**hit)).count();
            self.hits.truncate(num_current);
            self.num_live = self.hits.iter().filter(|hit| is_live(hit)).count() as u32;
            self.version = version;
        }
        if !index.holds(&self.hits, tokens, hashes) {
            self.clear();
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

    fn clear(&mut self) {
        self.hits.clear();
        self.num_live = 0;
    }
}

/// It is found again: nothing of it is saved.
impl Saved for Lookup {
    fn save(&self, _words: &mut Vec<u64>) {}

    fn restore(_words: &mut &[u64]) -> Option<Self> {
        Some(Self::default())
    }
}
