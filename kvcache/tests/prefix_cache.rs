//! The prefix cache as its users see it.

use quire_kvcache::{
    BlockId, BlockTable, BlockUsage, CacheSalt, Eviction, KvCacheConfig, KvCacheManager, NoBlocks, PinError,
    PrefixStats, StepId,
};

/// A pool of blocks of two tokens.
fn manager(num_blocks: u32) -> KvCacheManager {
    KvCacheManager::new(KvCacheConfig { watermark: 0.0, ..KvCacheConfig::new(num_blocks, 2) }).unwrap()
}

/// Admits tokens, computes all of them, and returns the table with the number of cached tokens.
fn run(cache: &mut KvCacheManager, tokens: &[u32]) -> (BlockTable, u32) {
    let hashes = cache.hasher().hash(tokens, CacheSalt::NONE);
    let mut table = BlockTable::new();
    let num_cached_tokens = cache.admit(&mut table, tokens, &hashes, 0).unwrap().commit();
    cache.register(&mut table, tokens, &hashes, tokens.len() as u32);
    (table, num_cached_tokens)
}

fn cached(cache: &KvCacheManager, tokens: &[u32]) -> u32 {
    cache.num_cached_tokens(tokens, &cache.hasher().hash(tokens, CacheSalt::NONE))
}

#[test]
fn a_beginning_is_found_by_running_and_by_later_sequences() {
    let mut cache = manager(16);
    let (first, none) = run(&mut cache, &[1, 2, 3, 4, 5]);
    let (second, shared) = run(&mut cache, &[1, 2, 3, 4, 6, 7]);
    assert_eq!((none, shared, first.blocks()[..2] == second.blocks()[..2]), (0, 4, true));
    assert_eq!(cache.usage().live, 4);
    cache.release(first, None);
    cache.release(second, None);
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 6, 7, 8]), 6);
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 6, 7]), 4, "the last token is left to compute");
    assert_eq!(cache.prefix_stats(), PrefixStats { query_tokens: 11, hit_tokens: 4 });
}

#[test]
fn leaves_go_first() {
    let mut cache = manager(4);
    let (table, _) = run(&mut cache, &[1, 2, 3, 4, 5, 6]);
    cache.release(table, None);
    for expected in [6, 4, 2] {
        assert_eq!(cached(&cache, &[1, 2, 3, 4, 5, 6, 7]), expected);
        let mut other = BlockTable::new();
        let num_tokens = 2 * (cache.usage().free + 1);
        cache.reserve(&mut other, 0..num_tokens).unwrap().commit(StepId(1));
        cache.release(other, None);
    }
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5, 6, 7]), 0);
}

#[test]
fn two_that_computed_the_same_share_what_follows() {
    let mut cache = manager(16);
    let tokens = [1, 2, 3, 4, 5, 6];
    let hashes = cache.hasher().hash(&tokens, CacheSalt::NONE);
    let (mut first, mut second) = (BlockTable::new(), BlockTable::new());
    cache.admit(&mut first, &tokens, &hashes, 0).unwrap().commit();
    cache.admit(&mut second, &tokens, &hashes, 0).unwrap().commit();
    cache.register(&mut first, &tokens, &hashes, 4);
    cache.register(&mut second, &tokens, &hashes, 6);
    cache.release(first, None);
    cache.release(second, None);
    assert_eq!(
        cached(&cache, &[1, 2, 3, 4, 5, 6, 7]),
        6,
        "the third block follows the first two of the other"
    );
    let BlockUsage { cached, free, live, .. } = cache.usage();
    assert_eq!((cached, free, live), (3, 13, 0), "a content is kept once");
}

#[test]
fn a_reset_bars_what_runs_from_the_cache() {
    let mut cache = manager(16);
    let tokens = [1, 2, 3, 4, 5];
    let (before, _) = run(&mut cache, &[9, 9, 9]);
    cache.release(before, None);
    let hashes = cache.hasher().hash(&tokens, CacheSalt::NONE);
    let mut table = BlockTable::new();
    cache.admit(&mut table, &tokens, &hashes, 0).unwrap().commit();
    cache.reset_prefix_cache();
    assert_eq!(cache.usage().cached, 0);
    cache.register(&mut table, &tokens, &hashes, 5);
    cache.release(table, None);
    assert_eq!((cached(&cache, &tokens), cache.usage().free), (0, 16));
}

#[test]
fn a_hit_on_an_unreferenced_block_is_not_counted_as_room() {
    let mut cache = manager(3);
    let (table, _) = run(&mut cache, &[1, 2, 3, 4]);
    cache.release(table, None);
    let tokens = [1, 2, 3, 4, 5, 6];
    let hashes = cache.hasher().hash(&tokens, CacheSalt::NONE);
    let mut table = BlockTable::new();
    let refusal = cache.admit(&mut table, &tokens, &hashes, 0).unwrap_err();
    assert_eq!(refusal, NoBlocks { need: 4, available: 3, retiring: 0 });
    assert_eq!((cache.usage().cached, table.num_blocks()), (2, 0));
}

#[test]
fn without_prefix_caching_nothing_is_kept() {
    let config = KvCacheConfig { enable_prefix_caching: false, ..KvCacheConfig::new(8, 2) };
    let mut cache = KvCacheManager::new(config).unwrap();
    let (table, _) = run(&mut cache, &[1, 2, 3, 4]);
    cache.release(table, None);
    assert_eq!((cache.usage().free, cached(&cache, &[1, 2, 3])), (8, 0));
    assert_eq!(cache.prefix_stats(), PrefixStats::default());
}

#[test]
fn a_write_into_a_known_block_needs_no_room_and_makes_it_unknown() {
    let mut cache = manager(3);
    let (parent, _) = run(&mut cache, &[1, 2, 3, 4]);
    let mut rest = BlockTable::new();
    cache.reserve(&mut rest, 0..2).unwrap().commit(StepId(1));
    let mut fork = cache.fork(&parent, 3);
    cache.release(parent, None);
    assert_eq!((cache.usage().live, cache.usage().available()), (3, 0));
    let growth = cache.reserve(&mut fork, 3..4).unwrap().commit(StepId(1));
    assert_eq!((growth.num_new, growth.copies.len()), (0, 0));
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 2, "the second block is about to hold something else");
    cache.release(fork, None);
    cache.release(rest, None);
}

#[test]
fn a_pinned_beginning_outlives_what_was_used_later() {
    let mut config = KvCacheConfig { watermark: 0.0, ..KvCacheConfig::new(8, 2) };
    (config.groups[0].block_bytes, config.max_pinned_bytes) = (100, 399);
    let mut cache = KvCacheManager::new(config).unwrap();
    let hashes = |tokens: &[u32]| cache.hasher().hash(tokens, CacheSalt::NONE);
    let (kept, late, long) = ([1, 2, 3, 4, 5], [6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]);
    let [of_kept, of_late, of_long] = [hashes(&kept), hashes(&late), hashes(&long)];
    assert_eq!(cache.pin(&kept, &of_kept), Err(PinError::NotCached { num_tokens: 4, cached_tokens: 0 }));
    for tokens in [&kept[..], &late, &long] {
        let (table, _) = run(&mut cache, tokens);
        cache.release(table, None);
    }
    let pin = cache.pin(&kept, &of_kept).unwrap();
    let over = PinError::OverCap { need_bytes: 400, used_bytes: 200, max_pinned_bytes: 399 };
    assert_eq!(cache.pin(&long, &of_long), Err(over));
    assert_eq!((cache.num_pinned_blocks(), cache.capacity().admissible_blocks()), (2, 5));
    // All that is not pinned is taken: the rest of the long one and the late one are gone.
    let mut other = BlockTable::new();
    cache.reserve(&mut other, 0..12).unwrap().commit(StepId(1));
    assert!(cache.reserve(&mut BlockTable::new(), 0..1).is_err());
    cache.release(other, None);
    assert_eq!((cached(&cache, &[1, 2, 3, 4, 5, 6, 7, 8, 9]), cached(&cache, &[6, 7, 8, 9, 1])), (4, 0));
    cache.check([]).unwrap();
    assert!(cache.unpin(pin) && !cache.unpin(pin));
    assert_eq!(cache.pin(&late, &of_late), Err(PinError::NotCached { num_tokens: 4, cached_tokens: 0 }));
    let BlockUsage { live, cached, .. } = cache.usage();
    assert_eq!((live, cached), (0, 2));
}

/// Evicts what came last: the order is the embedder's.
#[derive(Debug, Default)]
struct Newest(Vec<BlockId>);

impl Eviction for Newest {
    fn insert(&mut self, block: BlockId) {
        self.0.push(block);
    }

    fn remove(&mut self, block: BlockId) {
        self.0.retain(|other| *other != block);
    }

    fn evict(&mut self, _is_leaf: &dyn Fn(BlockId) -> bool) -> Option<BlockId> {
        self.0.pop()
    }

    fn len(&self) -> u32 {
        self.0.len() as u32
    }

    fn candidates(&self) -> Vec<BlockId> {
        self.0.clone()
    }
}

#[test]
fn another_order_of_eviction_is_a_value() {
    let config = KvCacheConfig { watermark: 0.0, ..KvCacheConfig::new(4, 2) };
    let mut cache = KvCacheManager::with_eviction(config, Box::<Newest>::default()).unwrap();
    for tokens in [[1, 2, 3], [4, 5, 6]] {
        let (table, _) = run(&mut cache, &tokens);
        cache.release(table, None);
    }
    let mut other = BlockTable::new();
    cache.reserve(&mut other, 0..6).unwrap().commit(StepId(1));
    assert_eq!((cached(&cache, &[1, 2, 3]), cached(&cache, &[4, 5, 6])), (2, 0), "the newest went");
    cache.release(other, None);
    cache.check([]).unwrap();
}

/// A sequence that begins like a cached one and is too long for the pool, and its table after the refusal.
fn refused(cache: &mut KvCacheManager) -> (BlockTable, BlockTable, Vec<u32>) {
    let (kept, _) = run(cache, &(0..12).collect::<Vec<_>>());
    let long: Vec<u32> = (0..40).collect();
    let hashes = cache.hasher().hash(&long, CacheSalt::NONE);
    let mut table = BlockTable::new();
    assert!(cache.admit(&mut table, &long, &hashes, 0).is_err());
    (kept, table, long)
}

#[track_caller]
fn check_same_as_new(cache: &mut KvCacheManager, mut table: BlockTable, tokens: &[u32], salt: CacheSalt) {
    let hashes = cache.hasher().hash(tokens, salt);
    let expected = cache.num_cached_tokens(tokens, &hashes);
    assert_eq!(cache.admit(&mut table, tokens, &hashes, 0).unwrap().commit(), expected);
    assert_eq!(table.num_blocks(), (tokens.len() as u32).div_ceil(2));
    cache.release(table, None);
}

#[test]
fn what_a_refused_table_found_is_not_given_to_another_prompt_tenant_or_pool() {
    let unrelated: Vec<u32> = (500..513).collect();
    let same_end: Vec<u32> = [7, 7].into_iter().chain(2..13).collect();
    let same: Vec<u32> = (0..13).collect();
    for (tokens, salt) in [
        (&unrelated[..], &b""[..]),
        (&same_end, b""),
        (&same, b"tenant b"),
        (&[7], b""),
        (&same[..5], b""),
        (&same, b""),
    ] {
        let mut cache = manager(16);
        let (kept, table, _) = refused(&mut cache);
        let salt = if salt.is_empty() { CacheSalt::NONE } else { cache.hasher().salt(&[salt]) };
        check_same_as_new(&mut cache, table, tokens, salt);
        cache.check([&kept]).unwrap();
    }
    let (kept, table, long) = refused(&mut manager(16));
    let mut other = manager(100);
    check_same_as_new(&mut other, table, &long, CacheSalt::NONE);
    assert_eq!(kept.num_blocks(), 6);
    other.check([]).unwrap();
}

#[test]
fn tokens_are_compared_whatever_hashes_say() {
    let mut cache = manager(16);
    let (kept, mut table, long) = refused(&mut cache);
    let hashes = cache.hasher().hash(&long, CacheSalt::NONE);
    let others: Vec<u32> = long.iter().take(13).map(|token| token ^ u32::from(*token < 4)).collect();
    assert_eq!(cache.admit(&mut table, &others, &hashes, 0).unwrap().num_cached_tokens(), 0);
    cache.check([&kept]).unwrap();
}

#[test]
fn a_headroom_beyond_all_numbers_is_refused() {
    let mut cache = manager(8);
    let hashes = cache.hasher().hash(&[1; 8], CacheSalt::NONE);
    let refusal = cache.admit(&mut BlockTable::new(), &[1; 8], &hashes, u32::MAX).unwrap_err();
    assert_eq!(refusal, NoBlocks { need: u32::MAX, available: 8, retiring: 0 });
}

#[test]
fn what_a_table_or_the_tokens_lack_is_not_registered() {
    let mut cache = manager(8);
    let hashes = cache.hasher().hash(&[1; 8], CacheSalt::NONE);
    cache.register(&mut BlockTable::new(), &[1; 8], &hashes, 8);
    let mut table = BlockTable::new();
    cache.admit(&mut table, &[1; 8], &hashes, 0).unwrap().commit();
    cache.register(&mut table, &[1; 3], &hashes, u32::MAX);
    assert_eq!(table.num_registered_blocks(), 1);
    cache.release(table, None);
    cache.check([]).unwrap();
}

#[test]
fn a_pool_beyond_all_memory_is_refused_before_it_is_made() {
    for num_blocks in [u32::MAX, u32::MAX - 1, 500_000_000] {
        let error = KvCacheManager::new(KvCacheConfig::new(num_blocks, 16)).unwrap_err().to_string();
        assert_eq!(error, format!("num_blocks is {num_blocks}, expected at most 26843545 of 16 tokens"));
    }
    let error = KvCacheManager::new(KvCacheConfig::new(1, u32::MAX)).unwrap_err().to_string();
    assert_eq!(error, "block_size is 4294967295, expected at most 1073741800");
    let config = KvCacheConfig { num_swap_blocks: u32::MAX, ..KvCacheConfig::new(8, 16) };
    let error = KvCacheManager::new(config).unwrap_err().to_string();
    assert_eq!(error, "num_swap_blocks is 4294967295, expected at most 268435456");
}

#[test]
fn a_configuration_answers_before_it_is_checked() {
    for watermark in [2.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut config = KvCacheConfig { watermark, max_pinned_bytes: 9, ..KvCacheConfig::new(8, 4) };
        config.groups = vec![config.groups[0]; 2];
        config.groups.iter_mut().for_each(|group| group.block_bytes = u64::MAX);
        assert!(config.capacity().admissible_blocks() <= 8 && config.block_bytes() == u64::MAX);
        assert!(config.validate().is_err());
    }
}

#[test]
fn a_reset_ends_pins() {
    let mut config = KvCacheConfig { watermark: 0.0, ..KvCacheConfig::new(8, 2) };
    (config.groups[0].block_bytes, config.max_pinned_bytes) = (100, 400);
    let mut cache = KvCacheManager::new(config).unwrap();
    let (table, _) = run(&mut cache, &[1, 2, 3, 4]);
    let hashes = cache.hasher().hash(&[1, 2, 3, 4], CacheSalt::NONE);
    let pin = cache.pin(&[1, 2, 3, 4], &hashes).unwrap();
    cache.release(table, None);
    cache.reset_prefix_cache();
    assert_eq!((cache.num_pinned_blocks(), cache.usage().free, cache.unpin(pin)), (0, 8, false));
}

/// Evicts what nobody told it of.
#[derive(Debug)]
struct Liar;

impl Eviction for Liar {
    fn insert(&mut self, _block: BlockId) {}

    fn remove(&mut self, _block: BlockId) {}

    fn evict(&mut self, _is_leaf: &dyn Fn(BlockId) -> bool) -> Option<BlockId> {
        Some(BlockId(3))
    }

    fn len(&self) -> u32 {
        1000
    }

    fn candidates(&self) -> Vec<BlockId> {
        Vec::new()
    }
}

#[test]
#[should_panic(expected = "an evicted block is cached")]
fn an_order_of_eviction_cannot_give_away_what_somebody_holds() {
    let config = KvCacheConfig { watermark: 0.0, ..KvCacheConfig::new(4, 2) };
    let mut cache = KvCacheManager::with_eviction(config, Box::new(Liar)).unwrap();
    let (_first, _) = run(&mut cache, &[1, 2, 3]);
    let (second, _) = run(&mut cache, &[4, 5, 6]);
    cache.release(second, None);
    assert_eq!(cache.usage().cached, 1, "the pool counts for itself");
    let mut other = BlockTable::new();
    cache.reserve(&mut other, 0..4).unwrap().commit(StepId(1));
}

#[test]
fn an_empty_write_takes_nothing() {
    let mut cache = manager(8);
    let (table, _) = run(&mut cache, &[1, 2, 3]);
    for write in [(9, 2), (5, 5), (0, 0)] {
        let mut empty = BlockTable::new();
        assert_eq!(cache.reserve(&mut empty, write.0..write.1).unwrap().commit(StepId(1)).num_new, 0);
        assert_eq!(empty.num_blocks(), 0);
    }
    cache.release(table, None);
    cache.check([]).unwrap();
}

fn swapping() -> KvCacheManager {
    let config = KvCacheConfig { watermark: 0.0, num_swap_blocks: 5, ..KvCacheConfig::new(8, 2) };
    KvCacheManager::new(config).unwrap()
}

#[test]
fn what_comes_back_is_computed_as_far_as_the_sequence_goes() {
    let mut cache = swapping();
    let (mut table, _) = run(&mut cache, &[1, 2, 3, 4, 5, 6]);
    let (transfer, swapped) = cache.swap_out(&mut table, 6, None).unwrap();
    assert!(cache.finish_transfer(transfer.id, |_| false));
    let hashes = cache.hasher().hash(&[7, 8, 9], CacheSalt::NONE);
    let (back, num_computed) =
        cache.admit(&mut table, &[7, 8, 9], &hashes, 0).unwrap().commit_swapped(swapped);
    assert_eq!(num_computed, 3);
    assert!(cache.finish_transfer(back.unwrap().id, |_| false));
    assert_eq!((cache.swap_usage().free, cache.swap_usage().total), (5, 5));
}

#[test]
#[should_panic(expected = "blocks of another swap space")]
fn another_managers_swapped_table_is_not_taken_for_ones_own() {
    let (mut cache, mut other) = (swapping(), swapping());
    let (mut table, _) = run(&mut other, &[1, 2, 3]);
    let (_, swapped) = other.swap_out(&mut table, 3, None).unwrap();
    cache.drop_swapped(swapped, None);
}
