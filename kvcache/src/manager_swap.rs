//! Swapping: sequences leave the pool for the host, and come back.
//!
//! ```text
//!             swap_out              finish_transfer             admit, commit_swapped          finish_transfer
//!   in the pool ──▶ SwappingOut ──────────────────▶ swapped ──────────────────▶ SwappingIn ──────────────────▶ in the pool
//!                  blocks of the pool stay live                       blocks of the host stay taken
//! ```
//!
//! Whoever gives a sequence up while one of its transfers is open hands its blocks to the transfer: they come free when
//! that is done, and not before.

use crate::block::StepId;
use crate::manager::KvCacheManager;
use crate::swap::{Direction, OpenTransfer, SwapFull, SwapUsage, SwappedTable, Transfer, TransferId};
use crate::table::BlockTable;

impl KvCacheManager {
    /// How the swap space is used.
    pub fn swap_usage(&self) -> SwapUsage {
        self.swap.usage()
    }

    /// Moves the blocks of the first `num_tokens` tokens of a sequence to the host; the rest of its blocks is released.
    /// Nothing that open steps still compute is counted among the tokens; those steps end with `until`. Returns the
    /// copies to be made behind those steps, and the sequence's table on the host. The blocks stay live until
    /// [`finish_transfer`](Self::finish_transfer).
    ///
    /// # Errors
    /// [`SwapFull`], and nothing has changed.
    pub fn swap_out(
        &mut self,
        table: &mut BlockTable,
        num_tokens: u32,
        until: Option<StepId>,
    ) -> Result<(Transfer, SwappedTable), SwapFull> {
        let num_blocks = self.capacity().blocks_for(num_tokens).min(table.num_blocks());
        self.swap.check(num_blocks)?;
        let mut moved = std::mem::take(table);
        let resets = moved.resets;
        let rest = moved.blocks.split_off(num_blocks as usize);
        self.release(BlockTable { blocks: rest, ..BlockTable::new() }, until);
        let host = self.swap.take(num_blocks as usize);
        let blocks = moved.blocks.iter().copied().zip(host.iter().copied()).collect();
        let id = self.swap.start(OpenTransfer { table: moved, until, host: Vec::new() });
        let swapped = SwappedTable { blocks: host, num_tokens, resets };
        Ok((Transfer { id, direction: Direction::Out, blocks }, swapped))
    }

    /// A transfer is done: what it kept on either side comes free. Steps that `is_open` says are open may still touch
    /// blocks of the pool. False if there is no such transfer.
    pub fn finish_transfer(&mut self, id: TransferId, is_open: impl Fn(StepId) -> bool) -> bool {
        let Some(OpenTransfer { table, until, host }) = self.swap.finish(id) else { return false };
        self.release(table, until.filter(|step| is_open(*step)));
        self.swap.give_back(host);
        true
    }

    /// Gives up what a sequence has on the host. Where a transfer of it is open, it comes free with that.
    ///
    /// # Panics
    /// Where it is seen that another manager made the table.
    pub fn drop_swapped(&mut self, swapped: SwappedTable, transfer: Option<TransferId>) {
        match transfer.and_then(|id| self.swap.get_mut(id)) {
            Some(open) => open.host.extend(swapped.blocks),
            None => self.swap.give_back(swapped.blocks),
        }
    }

    /// Gives up the table of a sequence that a transfer still fills: it comes free with that.
    pub fn drop_swapping_in(&mut self, table: BlockTable, transfer: TransferId) {
        match self.swap.get_mut(transfer) {
            Some(open) => open.table = table,
            None => self.release(table, None),
        }
    }

    /// All transfers are void, as after a reset of the device. Tables on the host that they were to fill hold nothing, and tables
    /// of the pool neither: [`drop_swapped`](Self::drop_swapped) and [`release`](Self::release) take them.
    pub fn fail_transfers(&mut self) {
        for id in self.swap.open_ids() {
            self.finish_transfer(id, |_| false);
        }
    }
}
