//! The size and the features of a pool.

use crate::capacity::Capacity;
use crate::error::{Error, Result};
use crate::group::{KvGroup, KvGroupKind};
use crate::hash::HashKey;

/// What a [`KvCacheManager`](crate::KvCacheManager) is made from.
#[derive(Clone, PartialEq, Debug)]
pub struct KvCacheConfig {
    /// Blocks in the pool, at least 1, and no more than 4 GiB of books tell of: 96 bytes a block and 4 a token slot.
    pub num_blocks: u32,
    /// Tokens a block holds, at least 1.
    pub block_size: u32,
    /// Share of the pool, in `0.0..1.0`, that admission leaves free while other sequences run.
    pub watermark: f64,
    /// Whether freed blocks keep their content for later sequences with the same beginning.
    pub enable_prefix_caching: bool,
    /// The key of the block hashes; random in a server.
    pub hash_key: HashKey,
    /// Blocks of swap space on the host, at most 2^28; 0 is none.
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

    /// The numbers derived from the size. A share that [`validate`](Self::validate) refuses counts as none or as all.
    pub fn capacity(&self) -> Capacity {
        let watermark_blocks = (f64::from(self.num_blocks) * self.watermark.min(1.0)) as u32;
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
        self.groups.iter().fold(0, |sum, group| sum.saturating_add(group.block_bytes))
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
        // How many blocks there are often follows from their size: that is told first.
        at_least_one("block_size", self.block_size)?;
        self.check_books()?;
        at_least_one("num_blocks", self.num_blocks)?;
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
        self.check_room()?;
        match self.groups.as_slice() {
            [KvGroup { kind: KvGroupKind::Full, .. }] => Ok(()),
            [KvGroup { kind, .. }] => Err(Error::GroupKind(*kind)),
            groups => Err(Error::SeveralGroups { given: groups.len() }),
        }
    }

    /// Numbers that are mistakes are refused before memory is asked for.
    fn check_books(&self) -> Result<()> {
        let block_bytes = BLOCK_BOOKS_BYTES + TOKEN_BOOKS_BYTES * u64::from(self.block_size);
        let max_blocks = MAX_BOOKS_BYTES / block_bytes;
        if max_blocks == 0 {
            let most = (MAX_BOOKS_BYTES - BLOCK_BOOKS_BYTES) / TOKEN_BOOKS_BYTES;
            return Err(out_of_range("block_size", self.block_size, &format!("at most {most}")));
        }
        if u64::from(self.num_blocks) > max_blocks {
            let expected = format!("at most {max_blocks} of {} tokens", self.block_size);
            return Err(out_of_range("num_blocks", self.num_blocks, &expected));
        }
        if self.num_swap_blocks > MAX_SWAP_BLOCKS {
            let expected = format!("at most {MAX_SWAP_BLOCKS}");
            return Err(out_of_range("num_swap_blocks", self.num_swap_blocks, &expected));
        }
        Ok(())
    }

    /// Some block has to be left for prompts.
    fn check_room(&self) -> Result<()> {
        let capacity = self.capacity();
        if capacity.admissible_blocks() > 0 {
            return Ok(());
        }
        let most = capacity.num_blocks.saturating_sub(capacity.watermark_blocks.saturating_add(1));
        let expected = format!(
            "at most {} ({most} blocks), which leaves prompts a block",
            u64::from(most).saturating_mul(self.block_bytes())
        );
        Err(out_of_range("max_pinned_bytes", self.max_pinned_bytes, &expected))
    }
}

/// What the books of a pool may take: more is a mistake.
const MAX_BOOKS_BYTES: u64 = 4 << 30;
/// What they take for a block, and for each of its tokens.
const BLOCK_BOOKS_BYTES: u64 = 96;
const TOKEN_BOOKS_BYTES: u64 = 4;
const MAX_SWAP_BLOCKS: u32 = 1 << 28;

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
        check(all, "max_pinned_bytes is 32, expected at most 28 (7 blocks), which leaves prompts a block");
        check(|c| c.groups.clear(), "0 kv groups given, this version keeps exactly one");
        check(|c| c.groups[0].kind = KvGroupKind::Window(32), "kv group kind Window(32) is not built");
    }
}
