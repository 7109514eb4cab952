//! The whole state of a manager as words, and a manager of that state.

use crate::config::KvCacheConfig;
use crate::manager::KvCacheManager;
use crate::saved::Saved;
use crate::swap::{SwappedTable, claim};
use crate::table::BlockTable;

impl KvCacheManager {
    /// Appends the state: what is known of contents, which blocks are free, cached and held by steps, in their orders,
    /// the swap space and the pins. The tables of sequences are not among it: their owners save them.
    pub fn save(&self, words: &mut Vec<u64>) {
        self.index.save(words);
        self.allocator.save(words);
        self.swap.save(words);
        self.pins.save(words);
        self.next_pin.save(words);
        self.stats.save(words);
        self.num_resets.save(words);
    }

    /// A manager of a saved state, with the tables of sequences, on the pool and on the host, that were saved beside it.
    /// Contents go in the usual order, and all tokens of cached blocks are zero, as in a replay.
    ///
    /// `None` if that is no state of such a pool.
    pub fn restore<'a>(
        config: KvCacheConfig,
        words: &mut &[u64],
        tables: &[&BlockTable],
        mut swapped: impl Iterator<Item = &'a SwappedTable>,
    ) -> Option<Self> {
        let num_swap_blocks = config.num_swap_blocks;
        let mut cache = Self::new(config).ok()?;
        cache.index.restore(words)?;
        let index = &cache.index;
        cache.allocator.restore(words, |block| index.registered(block).is_some())?;
        cache.swap = Saved::restore(words)?;
        cache.pins = Saved::restore(words)?;
        cache.next_pin = Saved::restore(words)?;
        cache.stats = Saved::restore(words)?;
        cache.num_resets = Saved::restore(words)?;
        // Counts that only grow are far from their ends.
        let counts = [cache.next_pin, cache.stats.query_tokens, cache.stats.hit_tokens];
        counts.iter().all(|count| *count <= 1 << 60 && cache.num_resets < u32::MAX / 2).then_some(())?;
        let Self { allocator, index, swap, pins, .. } = &mut cache;
        let mut adopt = |table: &BlockTable| {
            let is_sound = table.num_registered <= table.blocks.len()
                && table.parent.is_none_or(|parent| index.has(parent));
            is_sound && table.blocks.iter().all(|block| allocator.adopt(*block))
        };
        let mut is_taken = vec![false; num_swap_blocks as usize];
        let is_sound = tables.iter().copied().all(&mut adopt)
            && swap.tables().all(&mut adopt)
            && pins.values().all(&mut adopt)
            && swap.is_sound(num_swap_blocks, &mut is_taken)
            && swapped.all(|swapped| claim(&mut is_taken, &swapped.blocks));
        (is_sound && cache.check(tables.iter().copied()).is_ok()).then_some(cache)
    }
}
