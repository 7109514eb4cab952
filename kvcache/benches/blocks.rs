//! What a block costs: taking and releasing, forking, and finding it in the prefix cache.

#![allow(missing_docs)] // of what `criterion_group` makes

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use quire_kvcache::{BlockTable, CacheSalt, KvCacheConfig, KvCacheManager};

const BLOCK_SIZE: u32 = 16;
/// Blocks of one sequence.
const NUM_BLOCKS: u32 = 1000;

fn pools() -> impl Iterator<Item = (u32, KvCacheManager)> {
    [10_000, 1_000_000].into_iter().map(|num_blocks| {
        let config = KvCacheConfig::new(num_blocks, BLOCK_SIZE);
        (num_blocks, KvCacheManager::new(config).expect("usable"))
    })
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..NUM_BLOCKS * BLOCK_SIZE).map(|position| seed.wrapping_mul(0x9e37_79b9) ^ position).collect()
}

fn allocate_and_release(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate and release");
    group.throughput(Throughput::Elements(u64::from(NUM_BLOCKS)));
    for (num_blocks, mut cache) in pools() {
        group.bench_function(BenchmarkId::new("pool", num_blocks), |b| {
            b.iter(|| {
                let mut table = BlockTable::new();
                let reserved = cache.reserve(&mut table, 0..NUM_BLOCKS * BLOCK_SIZE).expect("fits");
                reserved.commit(Default::default());
                cache.release(table, None);
            });
        });
    }
}

fn fork_and_release(c: &mut Criterion) {
    let mut group = c.benchmark_group("fork and release");
    group.throughput(Throughput::Elements(u64::from(NUM_BLOCKS)));
    for (num_blocks, mut cache) in pools() {
        let mut table = BlockTable::new();
        cache.reserve(&mut table, 0..NUM_BLOCKS * BLOCK_SIZE).expect("fits").commit(Default::default());
        group.bench_function(BenchmarkId::new("pool", num_blocks), |b| {
            b.iter(|| {
                let fork = cache.fork(&table, NUM_BLOCKS * BLOCK_SIZE);
                cache.release(fork, None);
            });
        });
    }
}

/// The cache is full of sequences, and each look-up is of another one.
fn prefix_hit(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefix hit");
    group.throughput(Throughput::Elements(u64::from(NUM_BLOCKS)));
    for (num_blocks, mut cache) in pools() {
        let sequences: Vec<_> = (0..num_blocks / NUM_BLOCKS)
            .map(|seed| {
                let tokens = prompt(seed);
                let hashes = cache.hasher().hash(&tokens, CacheSalt::NONE);
                let mut table = BlockTable::new();
                cache
                    .reserve(&mut table, 0..NUM_BLOCKS * BLOCK_SIZE)
                    .expect("fits")
                    .commit(Default::default());
                cache.register(&mut table, &tokens, &hashes, NUM_BLOCKS * BLOCK_SIZE);
                cache.release(table, None);
                (tokens, hashes)
            })
            .collect();
        let mut next = (0..sequences.len()).cycle();
        group.bench_function(BenchmarkId::new("pool", num_blocks), |b| {
            b.iter(|| {
                let (tokens, hashes) = &sequences[next.next().expect("a cycle has no end")];
                assert_eq!(cache.num_cached_tokens(tokens, hashes), (NUM_BLOCKS - 1) * BLOCK_SIZE);
            });
        });
    }
}

criterion_group!(benches, allocate_and_release, fork_and_release, prefix_hit);
criterion_main!(benches);
