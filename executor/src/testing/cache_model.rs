//! What the KV cache would hold, as hashes: finds every wrong block table.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{BatchError, BlockTransfer, RowId, SwapDirection};

/// A pool whose slots remember which token, after which others, was written to them.
#[derive(Debug)]
pub(super) struct CacheModel {
    block_size: usize,
    /// Per slot: the hash of all tokens up to the one written there.
    slots: Vec<Option<u64>>,
    /// The same of the swap space.
    host: Vec<Option<u64>>,
    /// Per block: how many rows hold it.
    owners: Vec<u32>,
    /// Per row: the hash of its tokens up to each position. Looked up by key only.
    prefixes: HashMap<RowId, Vec<u64>>,
}

impl CacheModel {
    pub(super) fn new(num_blocks: usize, block_size: usize, num_swap_blocks: usize) -> Self {
        Self {
            block_size,
            slots: vec![None; num_blocks * block_size],
            host: vec![None; num_swap_blocks * block_size],
            owners: vec![0; num_blocks],
            prefixes: HashMap::new(),
        }
    }

    pub(super) fn hold(&mut self, blocks: &[u32]) {
        blocks.iter().for_each(|&block| self.owners[block as usize] += 1);
    }

    pub(super) fn let_go(&mut self, blocks: &[u32]) {
        blocks.iter().for_each(|&block| self.owners[block as usize] -= 1);
    }

    pub(super) fn release(&mut self, row: RowId, blocks: &[u32]) {
        self.let_go(blocks);
        self.prefixes.remove(&row);
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize * self.block_size, to as usize * self.block_size);
        self.slots.copy_within(from..from + self.block_size, to);
    }

    pub(super) fn transfer(&mut self, transfer: &BlockTransfer) {
        for &(block, host) in &transfer.blocks {
            let device = &mut self.slots[block as usize * self.block_size..][..self.block_size];
            let host = &mut self.host[host as usize * self.block_size..][..self.block_size];
            match transfer.direction {
                SwapDirection::Out => host.copy_from_slice(device),
                SwapDirection::In => device.copy_from_slice(host),
            }
        }
    }

    /// Row `row` of tokens `ids` computes the positions from `start` on: it reads all before, writes its own.
    pub(super) fn compute(
        &mut self,
        row: RowId,
        ids: &[u32],
        start: usize,
        blocks: &[u32],
    ) -> Result<(), BatchError> {
        let prefixes = self.prefixes.entry(row).or_default();
        for &id in &ids[prefixes.len()..] {
            prefixes.push(chain(prefixes.last().copied(), id));
        }
        for (position, &hash) in prefixes.iter().enumerate().take(ids.len()) {
            let block = blocks[position / self.block_size];
            let slot = &mut self.slots[block as usize * self.block_size + position % self.block_size];
            let num_owners = self.owners[block as usize];
            if position < start {
                if *slot != Some(hash) {
                    return Err(BatchError::ForeignRead { row, position, block });
                }
            } else if num_owners != 1 {
                return Err(BatchError::SharedWrite { row, block, num_owners });
            } else {
                *slot = Some(hash);
            }
        }
        Ok(())
    }
}

/// The hash of a sequence from that of all but its last token.
fn chain(before: Option<u64>, id: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, id).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RowId = RowId(0);
    const B: RowId = RowId(1);

    fn pool() -> CacheModel {
        let mut cache = CacheModel::new(4, 2, 0);
        cache.hold(&[0, 1]);
        cache.compute(A, &[7, 8, 9], 0, &[0, 1]).unwrap();
        cache
    }

    #[test]
    fn a_shared_prefix_can_be_read_and_not_written() {
        let mut cache = pool();
        cache.hold(&[0, 2]);
        cache.compute(B, &[7, 8, 6], 2, &[0, 2]).unwrap();
        let error = cache.compute(B, &[7, 8, 6], 1, &[0, 2]).unwrap_err();
        assert_eq!(error, BatchError::SharedWrite { row: B, block: 0, num_owners: 2 });
    }

    #[test]
    fn foreign_and_unwritten_slots_are_found() {
        let mut cache = pool();
        cache.hold(&[0, 2]);
        let error = cache.compute(B, &[7, 1, 6], 2, &[0, 2]).unwrap_err();
        assert_eq!(error, BatchError::ForeignRead { row: B, position: 1, block: 0 });
        let error = cache.compute(A, &[7, 8, 9, 5, 4], 4, &[0, 1, 3]).unwrap_err();
        assert_eq!(error, BatchError::ForeignRead { row: A, position: 3, block: 1 });
    }

    #[test]
    fn a_copied_block_can_be_read() {
        let mut cache = pool();
        cache.copy(1, 3);
        cache.hold(&[0, 3]);
        cache.compute(B, &[7, 8, 9, 4], 3, &[0, 3]).unwrap();
    }
}
