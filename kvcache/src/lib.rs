//! The bookkeeping of a paged KV cache: a block allocator with reference counts and copy-on-write, block tables, and
//! a prefix cache. It knows ids and numbers and holds no device memory, so that it serves any engine, and a
//! simulation as well.
//!
//! It stands at the bottom of the picture: the scheduler asks it for blocks, and whatever runs the model maps
//! [`BlockId`]s to memory.
//!
//! ```
//! use quire_kvcache::{Admission, BlockTable, CacheSalt, KvCacheConfig, KvCacheManager, StepId};
//!
//! let mut cache = KvCacheManager::new(KvCacheConfig::new(8, 16))?; // 8 blocks of 16 tokens
//! assert_eq!(cache.can_allocate(200), Admission::Never { need: 13, have: 8 });
//!
//! // A prompt of 40 tokens takes 3 blocks: checked first, then taken.
//! let mut prompt: Vec<u32> = (0..40).collect();
//! let hashes = cache.hasher().hash(&prompt, CacheSalt::NONE);
//! let mut table = BlockTable::new();
//! let num_cached_tokens = cache.admit(&mut table, &prompt, &hashes, 0)?.commit();
//! assert_eq!((num_cached_tokens, table.num_blocks()), (0, 3));
//!
//! // A second answer to the same prompt shares its blocks. The first to write gets a copy of the partial one.
//! let mut other = cache.fork(&table, 40);
//! let growth = cache.reserve(&mut other, 40..41)?.commit(StepId(1));
//! assert_eq!(growth.copies[0].copy.src, table.blocks()[2]);
//! cache.commit(StepId(1));
//!
//! // Computed blocks outlive their sequence until the room is needed.
//! cache.register(&mut table, &prompt, &hashes, 40);
//! cache.release(table, None);
//! cache.release(other, None);
//! assert_eq!((cache.usage().cached, cache.usage().free, cache.usage().live), (2, 6, 0));
//! assert_eq!(cache.num_cached_tokens(&prompt, &hashes), 32);
//! # cache.check([])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - `free + live + cached = total`; a block is counted once for each table that holds it.
//! - A refusal, or a guard that is dropped, has changed nothing.
//! - A block is written by the holder of its only reference; a shared one is copied first.
//! - A block that an open step may touch is not handed out before that step is committed, nor one that a transfer to or
//!   from the host may touch before that is done.
//! - A prefix hit has the same tokens, the same salt and the same predecessors as what it stands for, compared and
//!   not merely hashed; and it leaves at least the last token to compute.
//! - Nothing depends on time, chance or the order of a hash map: the same calls give the same blocks.

mod allocator;
mod block;
mod capacity;
mod config;
mod error;
mod eviction;
mod group;
mod hash;
mod list;
mod lookup;
mod manager;
mod manager_saved;
mod manager_swap;
mod pin;
mod prefix;
mod reservation;
mod saved;
mod swap;
mod table;

pub use allocator::{BlockAllocator, BlockUsage};
pub use block::{BlockCopy, BlockId, StepId};
pub use capacity::Capacity;
pub use config::KvCacheConfig;
pub use error::{Error, Inconsistency, NoBlocks, Result};
pub use eviction::{Eviction, LruLeavesFirst};
pub use group::{KvGroup, KvGroupKind};
pub use hash::{BlockHash, BlockHashes, CacheSalt, HashKey, PrefixHasher};
pub use manager::{Admission, KvCacheManager, PrefixStats};
pub use pin::{PinError, PinId};
pub use reservation::{Admit, Growth, Reservation, TableCopy};
pub use saved::Saved;
pub use swap::{Direction, HostBlockId, SwapFull, SwapUsage, SwappedTable, Transfer, TransferId};
pub use table::BlockTable;
