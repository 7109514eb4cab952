//! Random operations on the manager against a plain model that keeps, for each block, who holds it and what is in it.
//!
//! Laws:
//! 1. Conservation: free + live + cached = total, and each block counts exactly the tables that hold it.
//! 2. No block is handed out while a table or an open step holds it.
//! 3. A refusal, or a guard dropped without commit, changes nothing; a reservation is refused only if it does not fit.
//! 4. Nobody writes into a block that another table holds.
//! 5. A hit equals a recompute: cached blocks hold what computing the tokens would put there, under the same salt.
//! 6. A hit leaves at least the last token.
//! 7. What comes back from the host is what went there; a block on either side of an open transfer is handed out to
//!    nobody.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use quire_kvcache::{
    BlockHashes, BlockId, BlockTable, BlockUsage, Direction, KvCacheConfig, KvCacheManager, StepId,
    SwappedTable, Transfer, TransferId,
};

#[derive(Clone, Debug)]
enum Op {
    /// A sequence of so many tokens after a common prefix of that number arrives.
    Admit {
        prefix: u8,
        num_tokens: u32,
        salted: bool,
        commit: bool,
    },
    /// One computes and writes so many more tokens in the present step.
    Grow {
        which: usize,
        num_tokens: u32,
        commit: bool,
    },
    Fork {
        which: usize,
        num_tokens: u32,
    },
    Release {
        which: usize,
        retire: bool,
    },
    /// One goes to the host, with all that it has computed.
    SwapOut {
        which: usize,
    },
    /// One comes back, and computes on from where it was.
    SwapIn {
        which: usize,
    },
    /// One on the host is given up.
    DropSwapped {
        which: usize,
    },
    /// The oldest transfers are done.
    Finish {
        num_transfers: usize,
    },
    Commit,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let often = prop::bool::weighted(0.9);
    prop_oneof![
        4 => (0..3u8, 1..40u32, prop::bool::weighted(0.2), often)
            .prop_map(|(prefix, num_tokens, salted, commit)| Op::Admit { prefix, num_tokens, salted, commit }),
        6 => (any::<usize>(), 1..12u32, often).prop_map(|(which, num_tokens, commit)| Op::Grow { which, num_tokens, commit }),
        2 => (any::<usize>(), 1..60u32).prop_map(|(which, num_tokens)| Op::Fork { which, num_tokens }),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(which, retire)| Op::Release { which, retire }),
        2 => any::<usize>().prop_map(|which| Op::SwapOut { which }),
        2 => any::<usize>().prop_map(|which| Op::SwapIn { which }),
        1 => any::<usize>().prop_map(|which| Op::DropSwapped { which }),
        3 => (0..4usize).prop_map(|num_transfers| Op::Finish { num_transfers }),
        2 => Just(Op::Commit),
        1 => prop::bool::weighted(0.1).prop_map(|reset| if reset { Op::Reset } else { Op::Commit }),
    ]
}

struct Seq {
    table: BlockTable,
    hashes: BlockHashes,
    tokens: Vec<u32>,
    salt: u64,
    num_computed: u32,
    /// While it is on the host.
    swapped: Option<SwappedTable>,
    transfer: Option<TransferId>,
}

/// The real manager, and beside it what each slot would hold.
struct Model {
    cache: KvCacheManager,
    block_size: u32,
    seqs: Vec<Seq>,
    step: StepId,
    retiring: BTreeMap<StepId, Vec<BlockId>>,
    slots: Vec<u64>,
    host: Vec<u64>,
    away: Vec<Seq>,
    /// Transfers that are not done, with whose they are. They are made when they are done, as late as can be.
    transfers: VecDeque<Transfer>,
}

/// Blocks of the swap space.
const NUM_SWAP_BLOCKS: u32 = 9;

impl Model {
    fn new(num_blocks: u32, block_size: u32) -> Self {
        let config =
            KvCacheConfig { num_swap_blocks: NUM_SWAP_BLOCKS, ..KvCacheConfig::new(num_blocks, block_size) };
        let cache = KvCacheManager::new(config).unwrap();
        let host = vec![0; (NUM_SWAP_BLOCKS * block_size) as usize];
        let (away, transfers) = (Vec::new(), VecDeque::new());
        let slots = vec![0; (num_blocks * block_size) as usize];
        Self {
            cache,
            block_size,
            seqs: Vec::new(),
            step: StepId(1),
            retiring: BTreeMap::new(),
            slots,
            host,
            away,
            transfers,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Admit { prefix, num_tokens, salted, commit } => {
                self.admit(prefix, num_tokens, salted, commit)
            }
            Op::Commit => self.commit(),
            Op::Reset => self.cache.reset_prefix_cache(),
            Op::Finish { num_transfers } => self.finish(num_transfers),
            Op::SwapIn { which } if !self.away.is_empty() => self.swap_in(which % self.away.len()),
            Op::DropSwapped { which } if !self.away.is_empty() => self.drop_swapped(which % self.away.len()),
            Op::SwapIn { .. } | Op::DropSwapped { .. } => {}
            _ if self.seqs.is_empty() => {}
            Op::Grow { which, num_tokens, commit } => self.grow(which % self.seqs.len(), num_tokens, commit),
            Op::SwapOut { which } => self.swap_out(which % self.seqs.len()),
            Op::Fork { which, num_tokens } => self.fork(which % self.seqs.len(), num_tokens),
            Op::Release { which, retire } => self.release(which % self.seqs.len(), retire),
        }
        self.cache.check(self.seqs.iter().map(|seq| &seq.table)).expect("law 1");
    }

    fn admit(&mut self, prefix: u8, num_tokens: u32, salted: bool, commit: bool) {
        let tokens: Vec<u32> = (0..num_tokens).map(|position| position * u32::from(prefix % 2) + 7).collect();
        let hasher = self.cache.hasher();
        let salt = if salted { hasher.salt(&[b"tenant"]) } else { hasher.salt(&[]) };
        let hashes = hasher.hash(&tokens, salt);
        let (before, need) = (self.cache.usage(), self.cache.capacity().blocks_for(num_tokens + 1));
        let mut table = BlockTable::new();
        match self.cache.admit(&mut table, &tokens, &hashes, 0) {
            Ok(guard) if commit => {
                let num_computed = guard.commit();
                assert!(num_computed < num_tokens, "law 6");
                let seq = Seq {
                    table,
                    hashes,
                    tokens,
                    salt: u64::from(salted),
                    num_computed,
                    swapped: None,
                    transfer: None,
                };
                self.check_content(&seq);
                self.check_unheld(&seq.table.blocks()[(num_computed / self.block_size) as usize..], &[]);
                self.seqs.push(seq);
            }
            Ok(guard) => {
                drop(guard);
                self.check_unchanged(before, &table, 0);
            }
            Err(refusal) => {
                assert!(need > refusal.available, "law 3: hits only lower what is needed");
                self.check_unchanged(before, &table, 0);
            }
        }
    }

    fn grow(&mut self, which: usize, num_tokens: u32, commit: bool) {
        let mut seq = self.seqs.swap_remove(which);
        if seq.transfer.is_some() {
            return self.seqs.push(seq);
        }
        let write = seq.num_computed..seq.num_computed + num_tokens;
        let (before, blocks) = (self.cache.usage(), seq.table.blocks().to_vec());
        match self.cache.reserve(&mut seq.table, write.clone()) {
            Ok(guard) if commit => {
                let growth = guard.commit(self.step);
                let copied: Vec<_> = growth.copies.iter().map(|copy| copy.copy).collect();
                let sources: Vec<_> = copied.iter().map(|copy| copy.src).collect();
                let new = seq.table.blocks()[blocks.len()..].iter().copied();
                let new: Vec<_> = new.chain(copied.iter().map(|copy| copy.dst)).collect();
                self.check_unheld(&new, &sources);
                for copy in copied {
                    let (src, dst, size) =
                        (self.slot(copy.src, 0), self.slot(copy.dst, 0), self.block_size as usize);
                    self.slots.copy_within(src..src + size, dst);
                }
                self.retiring.entry(self.step).or_default().extend(sources);
                self.compute(&mut seq, num_tokens);
            }
            outcome => {
                drop(outcome);
                self.check_unchanged(before, &seq.table, blocks.len());
            }
        }
        self.seqs.push(seq);
    }

    /// Writes the values of the next tokens, and tells the prefix cache.
    fn compute(&mut self, seq: &mut Seq, num_tokens: u32) {
        for position in seq.num_computed..seq.num_computed + num_tokens {
            let block = seq.table.blocks()[(position / self.block_size) as usize];
            let others = self.seqs.iter().filter(|other| other.table.blocks().contains(&block));
            assert_eq!(others.count(), 0, "law 4");
            if position as usize >= seq.tokens.len() {
                seq.tokens.push(7 + position % 2);
            }
            let slot = self.slot(block, position);
            self.slots[slot] = values(seq, position);
        }
        seq.num_computed += num_tokens;
        self.cache.hasher().extend(&mut seq.hashes, &seq.tokens);
        self.cache.register(&mut seq.table, &seq.tokens, &seq.hashes, seq.num_computed);
        self.check_content(seq);
    }

    fn fork(&mut self, which: usize, num_tokens: u32) {
        let parent = &self.seqs[which];
        if parent.transfer.is_some() {
            return;
        }
        let num_computed = num_tokens.min(parent.num_computed);
        let tokens = parent.tokens[..parent.tokens.len().min(num_computed as usize)].to_vec();
        let salt = parent.salt;
        let tables = self.cache.fork_many(&parent.table, num_computed, 1 + num_tokens % 3);
        let mut hashes = BlockHashes::new(parent.hashes.salt());
        self.cache.hasher().extend(&mut hashes, &tokens);
        self.seqs.extend(tables.into_iter().map(|table| Seq {
            table,
            hashes: hashes.clone(),
            tokens: tokens.clone(),
            salt,
            num_computed,
            swapped: None,
            transfer: None,
        }));
    }

    fn release(&mut self, which: usize, retire: bool) {
        let seq = self.seqs.swap_remove(which);
        if let Some(transfer) = seq.transfer {
            return self.cache.drop_swapping_in(seq.table, transfer);
        }
        let until = retire.then_some(self.step);
        self.retiring.entry(self.step).or_default().extend(seq.table.blocks().iter().filter(|_| retire));
        self.cache.release(seq.table, until);
    }

    fn swap_out(&mut self, which: usize) {
        let mut seq = self.seqs.swap_remove(which);
        let (before, num_blocks) = (self.cache.swap_usage(), seq.table.blocks().len());
        if seq.transfer.is_some() {
            return self.seqs.push(seq);
        }
        match self.cache.swap_out(&mut seq.table, seq.num_computed, Some(self.step)) {
            Ok((transfer, swapped)) => {
                assert_eq!(seq.table.num_blocks(), 0);
                assert_eq!(swapped.num_blocks(), seq.num_computed.div_ceil(self.block_size));
                (seq.swapped, seq.transfer) = (Some(swapped), Some(transfer.id));
                self.transfers.push_back(transfer);
                self.away.push(seq);
            }
            Err(full) => {
                assert!(full.need > before.free && self.cache.swap_usage() == before, "law 3");
                assert_eq!(seq.table.blocks().len(), num_blocks, "law 3");
                self.seqs.push(seq);
            }
        }
    }

    fn swap_in(&mut self, which: usize) {
        let mut seq = self.away.swap_remove(which);
        if seq.transfer.is_some() {
            return self.away.push(seq);
        }
        while seq.tokens.len() <= seq.num_computed as usize {
            seq.tokens.push(7);
        }
        self.cache.hasher().extend(&mut seq.hashes, &seq.tokens);
        let Ok(guard) = self.cache.admit(&mut seq.table, &seq.tokens, &seq.hashes, 0) else {
            return self.away.push(seq);
        };
        let (transfer, num_computed) = guard.commit_swapped(seq.swapped.take().unwrap());
        assert!(num_computed >= seq.num_computed, "law 7");
        seq.num_computed = num_computed;
        seq.transfer = transfer.as_ref().map(|transfer| transfer.id);
        self.transfers.extend(transfer);
        if seq.transfer.is_none() {
            self.check_content(&seq);
        }
        self.seqs.push(seq);
    }

    fn drop_swapped(&mut self, which: usize) {
        let seq = self.away.swap_remove(which);
        self.cache.drop_swapped(seq.swapped.unwrap(), seq.transfer);
    }

    fn finish(&mut self, num_transfers: usize) {
        let num_transfers = num_transfers.min(self.transfers.len());
        let done: Vec<_> = self.transfers.drain(..num_transfers).collect();
        for transfer in done {
            let size = self.block_size as usize;
            for (block, host) in transfer.blocks {
                let (device, host) = (self.slot(block, 0), host.0 as usize * size);
                match transfer.direction {
                    Direction::Out => {
                        self.host[host..host + size].copy_from_slice(&self.slots[device..device + size])
                    }
                    Direction::In => {
                        self.slots[device..device + size].copy_from_slice(&self.host[host..host + size])
                    }
                }
            }
            let step = self.step;
            assert!(self.cache.finish_transfer(transfer.id, |until| until == step));
            assert!(!self.cache.finish_transfer(transfer.id, |_| false), "a transfer is done once");
            self.seqs.iter_mut().chain(&mut self.away).for_each(|seq| {
                seq.transfer = seq.transfer.filter(|open| *open != transfer.id);
            });
            let arrived: Vec<_> = self.seqs.iter().filter(|seq| seq.transfer.is_none()).collect();
            arrived.into_iter().for_each(|seq| self.check_content(seq));
        }
    }

    fn commit(&mut self) {
        self.cache.commit(self.step);
        self.retiring.remove(&self.step);
        self.step = self.step.next();
        if self.seqs.is_empty() && self.transfers.is_empty() {
            let BlockUsage { live, retiring, .. } = self.cache.usage();
            assert_eq!((live, retiring), (0, 0), "law 1: all blocks come back");
        }
    }

    fn check_content(&self, seq: &Seq) {
        for position in 0..seq.num_computed {
            let block = seq.table.blocks()[(position / self.block_size) as usize];
            assert_eq!(self.slots[self.slot(block, position)], values(seq, position), "law 5");
        }
    }

    /// Law 2, for blocks that were just handed out to a sequence that is not among `seqs`.
    fn check_unheld(&self, new: &[BlockId], sources: &[BlockId]) {
        let held_by_tables = self.seqs.iter().flat_map(|seq| seq.table.blocks());
        let held = held_by_tables.chain(self.retiring.values().flatten()).chain(sources);
        assert!(!held.into_iter().any(|block| new.contains(block)), "law 2");
    }

    fn check_unchanged(&self, before: BlockUsage, table: &BlockTable, num_blocks: usize) {
        assert_eq!((self.cache.usage(), table.blocks().len()), (before, num_blocks), "law 3");
    }

    fn slot(&self, block: BlockId, position: u32) -> usize {
        (block.0 * self.block_size + position % self.block_size) as usize
    }
}

/// What computing a position would leave there: it depends on all tokens up to it, and on the salt.
fn values(seq: &Seq, position: u32) -> u64 {
    let tokens = &seq.tokens[..=position as usize];
    tokens.iter().fold(seq.salt, |digest, token| {
        (digest ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    })
}

/// `QUIRE_CASES` cases of some 60 operations each: 17,000 make a million.
fn num_cases() -> u32 {
    std::env::var("QUIRE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(4096)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: num_cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_manager_keeps_the_laws(
        num_blocks in 1..24u32,
        block_size in prop::sample::select(vec![1, 2, 3, 8]),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut model = Model::new(num_blocks, block_size);
        ops.into_iter().for_each(|op| model.apply(op));
        while !model.seqs.is_empty() {
            model.release(0, false);
        }
        while !model.away.is_empty() {
            model.drop_swapped(0);
        }
        model.finish(usize::MAX);
        model.commit();
        prop_assert_eq!(model.cache.swap_usage().free, NUM_SWAP_BLOCKS);
    }
}
