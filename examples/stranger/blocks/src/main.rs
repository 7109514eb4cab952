//! How much memory does a shared beginning save? The bookkeeping of the paged cache answers without a model.

use std::error::Error;

use quire_kvcache::{BlockTable, CacheSalt, KvCacheConfig, KvCacheManager};

fn main() -> Result<(), Box<dyn Error>> {
    let num_requests = 50;
    let (shared, apart) = (num_blocks_in_use(num_requests, true)?, num_blocks_in_use(num_requests, false)?);
    println!(
        "{num_requests} requests with one beginning: {shared} blocks in use, {apart} without the prefix cache"
    );
    Ok(())
}

/// Blocks that requests of 500 tokens take which have their first 400 in common.
fn num_blocks_in_use(num_requests: u32, enable_prefix_caching: bool) -> Result<u32, Box<dyn Error>> {
    let config = KvCacheConfig { enable_prefix_caching, ..KvCacheConfig::new(4096, 16) };
    let mut cache = KvCacheManager::new(config)?;
    for request in 0..num_requests {
        let prompt: Vec<u32> = (0..500).map(|at| if at < 400 { at } else { 1000 * request + at }).collect();
        let hashes = cache.hasher().hash(&prompt, CacheSalt::NONE);
        let mut table = BlockTable::new();
        cache.admit(&mut table, &prompt, &hashes, 0)?.commit();
        cache.register(&mut table, &prompt, &hashes, 500);
    }
    Ok(cache.usage().live)
}

#[test]
fn the_beginning_is_kept_once() {
    let (shared, apart) = (num_blocks_in_use(50, true), num_blocks_in_use(50, false));
    assert_eq!(apart.expect("the pool is large enough"), 50 * 32);
    assert_eq!(shared.expect("the pool is large enough"), 25 + 50 * 7);
}
