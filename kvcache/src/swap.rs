//! Swap space: where the blocks of sequences that gave way lie on the host, and what is on its way there and back.

use std::collections::BTreeMap;

use crate::block::{BlockId, StepId};
use crate::saved;
use crate::table::BlockTable;

/// One block of the swap space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostBlockId(pub u32);

/// A transfer between the pool and the swap space. Ids are given in order and are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransferId(pub u64);

/// Where a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the pool to the swap space. It starts after the last step that writes the blocks.
    Out,
    /// From the swap space to the pool. No step reads the blocks before it is done.
    In,
}

/// Copies of whole blocks between the pool and the swap space. Until the transfer is said to be done, its blocks on both
/// sides are handed out to nobody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Its name, by which it is said to be done.
    pub id: TransferId,
    /// Where it goes.
    pub direction: Direction,
    /// The blocks, pairwise.
    pub blocks: Vec<(BlockId, HostBlockId)>,
}

/// The blocks of a sequence on the host, in the order of its positions. It stands for that sequence in the manager that made
/// it, and no other. Like a [`BlockTable`] it must be given back: see
/// [`KvCacheManager::drop_swapped`](crate::KvCacheManager::drop_swapped), which is also all that can be done with it when the
/// transfer that was to fill it has failed.
#[derive(Debug, Default)]
pub struct SwappedTable {
    pub(crate) blocks: Vec<HostBlockId>,
    pub(crate) num_tokens: u32,
    /// As in [`BlockTable`].
    pub(crate) resets: u32,
}

impl SwappedTable {
    /// Computed tokens that the blocks hold.
    pub fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// How many blocks they are.
    pub fn num_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }
}

/// Why nothing was swapped out. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{need} blocks of swap space needed, {free} free of {total}")]
pub struct SwapFull {
    /// Blocks that the sequence takes there.
    pub need: u32,
    /// Blocks that are free there.
    pub free: u32,
    /// Blocks of the swap space.
    pub total: u32,
}

/// How the swap space is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapUsage {
    /// Blocks without content.
    pub free: u32,
    /// Blocks of the space.
    pub total: u32,
    /// Transfers that are not done.
    pub num_transfers: u32,
}

/// The ledger of the swap space.
#[derive(Debug)]
pub(crate) struct SwapSpace {
    free: Vec<HostBlockId>,
    total: u32,
    next_transfer: u64,
    /// What is given back on either side when a transfer is done.
    open: BTreeMap<TransferId, OpenTransfer>,
}

#[derive(Debug, Default)]
pub(crate) struct OpenTransfer {
    pub(crate) table: BlockTable,
    /// The last step that may touch the blocks of `table`.
    pub(crate) until: Option<StepId>,
    pub(crate) host: Vec<HostBlockId>,
}

impl SwapSpace {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let free = (0..num_blocks).rev().map(HostBlockId).collect();
        Self { free, total: num_blocks, next_transfer: 0, open: BTreeMap::new() }
    }

    /// Whether every block is in one place only, of those that the space knows of itself, and is one of its blocks:
    /// what is restored is asked. `is_taken` counts them.
    pub(crate) fn is_sound(&self, total: u32, is_taken: &mut [bool]) -> bool {
        let ids = self.open.keys().all(|id| id.0 < self.next_transfer);
        let open = self.open.values().all(|open| claim(is_taken, &open.host));
        self.total == total && ids && open && claim(is_taken, &self.free)
    }

    pub(crate) fn usage(&self) -> SwapUsage {
        SwapUsage { free: self.free.len() as u32, total: self.total, num_transfers: self.open.len() as u32 }
    }

    pub(crate) fn check(&self, need: u32) -> Result<(), SwapFull> {
        let SwapUsage { free, total, .. } = self.usage();
        if need <= free { Ok(()) } else { Err(SwapFull { need, free, total }) }
    }

    /// Takes blocks that [`check`](Self::check) has found to be there.
    pub(crate) fn take(&mut self, num_blocks: usize) -> Vec<HostBlockId> {
        self.free.split_off(self.free.len() - num_blocks)
    }

    /// # Panics
    /// If the blocks are not of this space: more than are taken, or beyond its end.
    pub(crate) fn give_back(&mut self, blocks: Vec<HostBlockId>) {
        let num_taken = self.total as usize - self.free.len();
        let are_own = blocks.len() <= num_taken && blocks.iter().all(|block| block.0 < self.total);
        assert!(are_own, "blocks of another swap space, or given back twice");
        self.free.extend(blocks);
    }

    pub(crate) fn start(&mut self, open: OpenTransfer) -> TransferId {
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        self.open.insert(id, open);
        id
    }

    pub(crate) fn get_mut(&mut self, id: TransferId) -> Option<&mut OpenTransfer> {
        self.open.get_mut(&id)
    }

    pub(crate) fn finish(&mut self, id: TransferId) -> Option<OpenTransfer> {
        self.open.remove(&id)
    }

    pub(crate) fn open_ids(&self) -> Vec<TransferId> {
        self.open.keys().copied().collect()
    }

    /// Blocks of the pool that come free with transfers, at most: others may share some.
    pub(crate) fn num_leaving(&self) -> u32 {
        self.open.values().map(|open| open.table.num_blocks()).sum()
    }

    /// Tables that only transfers hold.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.open.values().map(|open| &open.table)
    }
}

saved!(SwapSpace { free, total, next_transfer, open });

/// Marks blocks as taken; false if one is already, or is none of the space.
pub(crate) fn claim(is_taken: &mut [bool], blocks: &[HostBlockId]) -> bool {
    blocks.iter().all(|block| {
        is_taken.get_mut(block.0 as usize).is_some_and(|is_taken| !std::mem::replace(is_taken, true))
    })
}
