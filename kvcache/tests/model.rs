//! Random operations on the manager against a plain model that keeps, for each block, who holds it and what is in it.
//!
//! Laws:
//! 1. Conservation: free + live + cached = total, and each block counts exactly the tables that hold it.
//! 2. No block is handed out while a table or an open step holds it.
//! 3. A refusal, or a guard dropped without commit, changes nothing; a reservation is refused only if it does not fit.
//! 4. Nobody writes into a block that another table holds.
//! 5. A hit equals a recompute: cached blocks hold what computing the tokens would put there, under the same salt.
//! 6. A hit leaves at least the last token.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quire_kvcache::{BlockHashes, BlockId, BlockTable, BlockUsage, KvCacheConfig, KvCacheManager, StepId};

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
}

/// The real manager, and beside it what each slot would hold.
struct Model {
    cache: KvCacheManager,
    block_size: u32,
    seqs: Vec<Seq>,
    step: StepId,
    retiring: BTreeMap<StepId, Vec<BlockId>>,
    slots: Vec<u64>,
}

impl Model {
    fn new(num_blocks: u32, block_size: u32) -> Self {
        let cache = KvCacheManager::new(KvCacheConfig::new(num_blocks, block_size)).unwrap();
        let slots = vec![0; (num_blocks * block_size) as usize];
        Self { cache, block_size, seqs: Vec::new(), step: StepId(1), retiring: BTreeMap::new(), slots }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Admit { prefix, num_tokens, salted, commit } => {
                self.admit(prefix, num_tokens, salted, commit)
            }
            Op::Commit => self.commit(),
            Op::Reset => self.cache.reset_prefix_cache(),
            _ if self.seqs.is_empty() => {}
            Op::Grow { which, num_tokens, commit } => self.grow(which % self.seqs.len(), num_tokens, commit),
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
                let seq = Seq { table, hashes, tokens, salt: u64::from(salted), num_computed };
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
        let num_computed = num_tokens.min(parent.num_computed);
        let tokens = parent.tokens[..parent.tokens.len().min(num_computed as usize)].to_vec();
        let table = self.cache.fork(&parent.table, num_computed);
        let mut hashes = BlockHashes::new(parent.hashes.salt());
        self.cache.hasher().extend(&mut hashes, &tokens);
        self.seqs.push(Seq { table, hashes, tokens, salt: parent.salt, num_computed });
    }

    fn release(&mut self, which: usize, retire: bool) {
        let seq = self.seqs.swap_remove(which);
        let until = retire.then_some(self.step);
        self.retiring.entry(self.step).or_default().extend(seq.table.blocks().iter().filter(|_| retire));
        self.cache.release(seq.table, until);
    }

    fn commit(&mut self) {
        self.cache.commit(self.step);
        self.retiring.remove(&self.step);
        self.step = self.step.next();
        if self.seqs.is_empty() {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

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
        model.commit();
    }
}
