//! Names of block contents: a keyed 128-bit hash of a block's tokens and of all that came before them.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// The key of all hashes of a cache. A server draws it at random, so that no client can aim at a collision; a test
/// or a replay passes its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashKey(pub u64, pub u64);

/// Whatever the cached values depend on besides the tokens: tenant, adapter version, image contents, KV dtype.
/// Two sequences share blocks only if their salts are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CacheSalt(u128);

impl CacheSalt {
    /// Nothing besides the tokens.
    pub const NONE: Self = Self(0);

    /// Half of it, which tells salts apart as a hash's half tells blocks apart.
    pub fn low_bits(self) -> u64 {
        self.0 as u64
    }

    /// A salt of which only that half is known, as a recording keeps it.
    pub fn from_low_bits(bits: u64) -> Self {
        Self(u128::from(bits))
    }
}

/// The name of a full block's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockHash(pub(crate) u128);

impl BlockHash {
    /// Half of the hash: enough to tell groups apart where a collision does no harm.
    pub fn low_bits(self) -> u64 {
        self.0 as u64
    }

    /// A hash of which only that half is known, as a recording keeps it: it stands for the whole one where no other
    /// hash has the same half.
    pub fn from_low_bits(bits: u64) -> Self {
        Self(u128::from(bits))
    }
}

/// The hashes of the full blocks of one sequence, in order. Computed once, off the engine's thread, then extended
/// as tokens arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockHashes {
    salt: CacheSalt,
    hashes: Vec<BlockHash>,
}

impl BlockHashes {
    /// Of a sequence that has no full block yet.
    pub fn new(salt: CacheSalt) -> Self {
        Self { salt, hashes: Vec::new() }
    }

    /// The salt in force.
    pub fn salt(&self) -> CacheSalt {
        self.salt
    }

    /// Hashes of one's own choice, to see what a collision does.
    #[cfg(test)]
    pub(crate) fn forged(salt: CacheSalt, hashes: &[u128]) -> Self {
        Self { salt, hashes: hashes.iter().copied().map(BlockHash).collect() }
    }

    /// Adds the hash of the next block, known from elsewhere: a replay has no tokens to compute it from.
    pub fn push(&mut self, hash: BlockHash) {
        self.hashes.push(hash);
    }

    /// Forgets the blocks that are not full with the first `num_tokens` tokens.
    pub fn truncate(&mut self, num_tokens: usize, block_size: u32) {
        self.hashes.truncate(num_tokens / block_size as usize);
    }

    /// One hash a full block.
    pub fn as_slice(&self) -> &[BlockHash] {
        &self.hashes
    }
}

/// Computes hashes; a small value that any thread may own.
///
/// SipHash-1-3 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), from the
/// crate `siphasher`: keyed, made for tables that strangers fill, and fast on short inputs. A collision costs a miss,
/// never a wrong block, because tokens are compared on every hit.
#[derive(Clone, Copy, Debug)]
pub struct PrefixHasher {
    key: HashKey,
    block_size: u32,
}

impl PrefixHasher {
    /// For blocks of `block_size` tokens. A block of none is never full: there are no hashes then.
    pub fn new(key: HashKey, block_size: u32) -> Self {
        Self { key, block_size }
    }

    /// Turns the parts of a salt into one. Parts are kept apart: `["ab"]` and `["a", "b"]` differ.
    pub fn salt(&self, parts: &[&[u8]]) -> CacheSalt {
        let mut hasher = self.hasher();
        for part in parts {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        CacheSalt(hasher.finish128().as_u128())
    }

    /// The hashes of all full blocks of `tokens`.
    pub fn hash(&self, tokens: &[u32], salt: CacheSalt) -> BlockHashes {
        let mut hashes = BlockHashes::new(salt);
        self.extend(&mut hashes, tokens);
        hashes
    }

    /// Adds the hashes of the blocks that have become full; `tokens` are all tokens of the sequence.
    pub fn extend(&self, hashes: &mut BlockHashes, tokens: &[u32]) {
        if self.block_size == 0 {
            return;
        }
        let done = hashes.hashes.len() * self.block_size as usize;
        let Some(rest) = tokens.get(done..) else { return };
        for block in rest.chunks_exact(self.block_size as usize) {
            let hash = self.hash_block(hashes.hashes.last().copied(), hashes.salt, block);
            hashes.hashes.push(hash);
        }
    }

    /// The hash of one full block after the block of hash `parent`.
    pub fn hash_block(&self, parent: Option<BlockHash>, salt: CacheSalt, tokens: &[u32]) -> BlockHash {
        let mut hasher = self.hasher();
        hasher.write(&parent.map_or(0, |hash| hash.0).to_le_bytes());
        hasher.write(&salt.0.to_le_bytes());
        tokens.iter().for_each(|token| hasher.write(&token.to_le_bytes()));
        BlockHash(hasher.finish128().as_u128())
    }

    fn hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_tokens_parent_salt_and_key() {
        let hasher = PrefixHasher::new(HashKey(1, 2), 2);
        let hash = |tokens: &[u32]| hasher.hash(tokens, CacheSalt::NONE);
        let base = hash(&[1, 2, 3, 4]);
        assert_eq!(base.as_slice().len(), 2);
        assert_eq!(base.as_slice()[..1], *hash(&[1, 2, 9]).as_slice());
        assert_ne!(base.as_slice()[1], hash(&[9, 2, 3, 4]).as_slice()[1]);
        assert_ne!(base, hasher.hash(&[1, 2, 3, 4], hasher.salt(&[b"tenant"])));
        assert_ne!(base, PrefixHasher::new(HashKey(1, 3), 2).hash(&[1, 2, 3, 4], CacheSalt::NONE));
        assert_ne!(hasher.salt(&[b"ab"]), hasher.salt(&[b"a", b"b"]));
    }

    #[test]
    fn a_block_of_no_tokens_is_never_full() {
        let hashes = PrefixHasher::new(HashKey(1, 2), 0).hash(&[1, 2], CacheSalt::NONE);
        assert_eq!(hashes, BlockHashes::new(CacheSalt::NONE));
    }

    #[test]
    fn extending_equals_hashing_at_once() {
        let hasher = PrefixHasher::new(HashKey(1, 2), 3);
        let tokens: Vec<u32> = (0..20).collect();
        let mut grown = BlockHashes::new(CacheSalt::NONE);
        (0..=tokens.len()).for_each(|len| hasher.extend(&mut grown, &tokens[..len]));
        assert_eq!(grown, hasher.hash(&tokens, CacheSalt::NONE));
    }
}
