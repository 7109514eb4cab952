//! The size and the features of a pool.

use crate::capacity::Capacity;
use crate::error::{Error, Result};
use crate::group::{KvGroup, KvGroupKind};
use crate::hash::HashKey;

/// What a [`KvCacheManager`](crate::KvCacheManager) is made from.
#[derive(Clone, PartialEq, Debug)]
pub struct KvCacheConfig {
    /// Blocks in the pool, at least 1.
    pub num_blocks: u32,
    /// Tokens a block holds, at least 1.
    pub block_size: u32,
    /// Share of the pool, in `0.0..1.0`, that admission leaves free while other sequences run.
    pub watermark: f64,
    /// Whether freed blocks keep their content for later sequences with the same beginning.
    pub enable_prefix_caching: bool,
    /// The key of the block hashes; random in a server.
    pub hash_key: HashKey,
    /// Blocks of swap space on the host; 0 is none.
    pub num_swap_blocks: u32,
    /// Bytes of cached beginnings that may be pinned; they are set aside, so that no sequence may count on them.
    pub max_pinned_bytes: u64,
    /// The model's KV groups. This version keeps exactly one, of kind `Full`.
    pub groups: Vec<KvGroup>,
}

impl KvCacheConfig {
    /// The defaults for a pool of this size: watermark 1 %, prefix caching on, a fixed hash key, one full group.
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        Self {
            num_blocks,
            block_size,
            watermark: 0.01,
            enable_prefix_caching: true,
            hash_key: HashKey::default(),
            num_swap_blocks: 0,
            max_pinned_bytes: 0,
            groups: vec![KvGroup::default()],
        }
    }

    /// The numbers derived from the size.
    pub fn capacity(&self) -> Capacity {
        let watermark_blocks = (f64::from(self.num_blocks) * self.watermark) as u32;
        let pinnable = self.max_pinned_bytes / self.block_bytes().max(1);
        let pinnable_blocks =
            u32::try_from(pinnable).unwrap_or(u32::MAX).min(self.num_blocks - watermark_blocks);
        Capacity {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            watermark_blocks,
            pinnable_blocks,
        }
    }

    /// Bytes of one block over all groups; 0 where nobody said.
    pub fn block_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.block_bytes).sum()
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range or asks for a part that is not built.
    pub fn validate(&self) -> Result<()> {
        let at_least_one = |field, given: u32| match given {
            0 => Err(out_of_range(field, given, "at least 1")),
            _ => Ok(()),
        };
        at_least_one("num_blocks", self.num_blocks)?;
        at_least_one("block_size", self.block_size)?;
        if self.num_blocks == u32::MAX {
            return Err(out_of_range("num_blocks", self.num_blocks, "less than 4294967295"));
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(out_of_range("watermark", self.watermark, "at least 0 and less than 1"));
        }
        if self.max_pinned_bytes > 0 && self.block_bytes() == 0 {
            return Err(out_of_range(
                "max_pinned_bytes",
                self.max_pinned_bytes,
                "0 where a block has no bytes",
            ));
        }
        let Capacity { pinnable_blocks, num_blocks, .. } = self.capacity();
        if pinnable_blocks >= num_blocks {
            let expected = "less than the pool";
            return Err(out_of_range("max_pinned_bytes", self.max_pinned_bytes, expected));
        }
        match self.groups.as_slice() {
            [KvGroup { kind: KvGroupKind::Full, .. }] => Ok(()),
            [KvGroup { kind, .. }] => Err(Error::GroupKind(*kind)),
            groups => Err(Error::SeveralGroups { given: groups.len() }),
        }
    }
}

fn out_of_range(field: &'static str, given: impl ToString, expected: &str) -> Error {
    Error::OutOfRange { field, given: given.to_string(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(edit: impl FnOnce(&mut KvCacheConfig), message: &str) {
        let mut config = KvCacheConfig::new(8, 16);
        edit(&mut config);
        assert_eq!(config.validate().unwrap_err().to_string(), message);
    }

    #[test]
    fn refusals_name_field_value_and_what_works() {
        KvCacheConfig::new(8, 16).validate().unwrap();
        check(|c| c.num_blocks = 0, "num_blocks is 0, expected at least 1");
        check(|c| c.block_size = 0, "block_size is 0, expected at least 1");
        check(|c| c.watermark = 1.0, "watermark is 1, expected at least 0 and less than 1");
        check(|c| c.watermark = f64::NAN, "watermark is NaN, expected at least 0 and less than 1");
        check(|c| c.max_pinned_bytes = 9, "max_pinned_bytes is 9, expected 0 where a block has no bytes");
        let all = |c: &mut KvCacheConfig| (c.groups[0].block_bytes, c.max_pinned_bytes) = (4, 32);
        check(all, "max_pinned_bytes is 32, expected less than the pool");
        check(|c| c.groups.clear(), "0 kv groups given, this version keeps exactly one");
        check(|c| c.groups[0].kind = KvGroupKind::Window(32), "kv group kind Window(32) is not built");
    }
}
