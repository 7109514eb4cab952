//! Forks: several answers to one prompt.

use quire_kvcache::{BlockHashes, NoBlocks};

use crate::config::CapacityMode;
use crate::error::ForkError;
use crate::hold::Holds;
use crate::ids::{Epoch, SeqId};
use crate::policy::EventKind;
use crate::scheduler::Scheduler;
use crate::sequence::{SeqStatus, Sequence};
use crate::slots::Sequences;
use crate::state::State;

impl Scheduler {
    /// How many forks may run at once now, as far as it is a matter of numbers: `max_num_seqs`, or what admission is
    /// lowered to after preemptions, less those that run.
    pub fn num_free_seats(&self) -> u32 {
        self.state.num_free_seats()
    }

    /// Makes a second sequence out of the first `num_tokens` tokens of a running one, at least its prompt. The child
    /// shares the blocks computed so far, a partial last one too, which is copied when either writes into it. It runs
    /// at once and computes the last of its tokens again, to sample for itself.
    ///
    /// # Errors
    /// A [`ForkError`], and nothing has changed.
    pub fn fork(&mut self, parent: SeqId, num_tokens: u32) -> Result<SeqId, ForkError> {
        let children = self.fork_many(parent, num_tokens, 1)?;
        Ok(children[0])
    }

    /// Forks `num_children` times at once: all of them run, or none does. The ids follow each other. See
    /// [`fork`](Self::fork).
    ///
    /// # Errors
    /// A [`ForkError`], and nothing has changed.
    pub fn fork_many(
        &mut self,
        parent: SeqId,
        num_tokens: u32,
        num_children: u32,
    ) -> Result<Vec<SeqId>, ForkError> {
        self.state.check_fork(parent, num_tokens, num_children)?;
        let children = self.state.fork(parent, num_tokens, num_children)?;
        Ok(children.into_iter().map(|child| self.start_fork(child)).collect())
    }

    fn start_fork(&mut self, child: Sequence) -> SeqId {
        let (id, arrival) = (child.id, child.arrival);
        self.state.running.insert(&child);
        self.state.sequences.push(child);
        self.state.observe(id, |observer, seq| observer.arrived(seq, arrival));
        self.event(id, EventKind::Arrived);
        id
    }
}

impl State {
    fn check_fork(&self, parent: SeqId, num_tokens: u32, num_children: u32) -> Result<(), ForkError> {
        let parent = forkable(&self.sequences, parent)?;
        let (min, max) = (parent.num_prompt_tokens, parent.num_tokens());
        if !(min..=max).contains(&num_tokens) {
            return Err(ForkError::OutOfRange { given: num_tokens, min, max });
        }
        if num_tokens - min >= parent.max_output_tokens {
            return Err(ForkError::NoOutput { given: num_tokens });
        }
        if num_children > self.num_free_seats() {
            return Err(match self.thrash.limit() {
                Some(limit) if limit < self.config.max_num_seqs => ForkError::Thrashing { limit },
                _ => ForkError::SeqLimit { limit: self.config.max_num_seqs },
            });
        }
        self.check_guaranteed(parent, parent.num_shared_tokens(num_tokens), num_children)
            .map_err(ForkError::NoBlocks)
    }

    /// Sequences that may be let run beside those that do.
    fn num_free_seats(&self) -> u32 {
        let limit = self.thrash.limit().unwrap_or(u32::MAX).min(self.config.max_num_seqs);
        limit.saturating_sub(self.running.len() as u32)
    }

    /// In the mode `Guaranteed`, and while somebody runs who is to be spared, forks must be able to run to their ends beside all others: as far as they do not share,
    /// and each with a copy of the block that it shares in part.
    fn check_guaranteed(
        &self,
        parent: &Sequence,
        num_shared_tokens: u32,
        num_children: u32,
    ) -> Result<(), NoBlocks> {
        if self.config.capacity_mode != CapacityMode::Guaranteed && !self.running.would_tire(parent) {
            return Ok(());
        }
        let capacity = self.cache.capacity();
        let all = self.running.ids().filter_map(|id| self.sequences.get(id));
        let growth: u32 = all.map(|seq| seq.growth(&self.cache)).sum();
        let num_shared_blocks = num_shared_tokens / capacity.block_size;
        let own = capacity.blocks_for(parent.worst_case_tokens()) - num_shared_blocks;
        let usage = self.cache.usage();
        let need = growth.saturating_add(own.saturating_mul(num_children));
        let available = usage.available();
        if need <= available { Ok(()) } else { Err(NoBlocks { need, available, retiring: usage.retiring }) }
    }

    /// Children that have been found to be allowed, with ids that follow each other.
    fn fork(
        &mut self,
        parent: SeqId,
        num_tokens: u32,
        num_children: u32,
    ) -> Result<Vec<Sequence>, ForkError> {
        let SeqId(first) = self.sequences.next_id();
        let parent = forkable(&self.sequences, parent)?;
        let num_computed_tokens = parent.num_shared_tokens(num_tokens);
        let tokens = &parent.tokens[..num_tokens as usize];
        let num_full_blocks = (num_tokens / self.cache.config().block_size) as usize;
        let mut hashes = BlockHashes::new(parent.hashes.salt());
        parent.hashes.as_slice().iter().take(num_full_blocks).for_each(|hash| hashes.push(*hash));
        let tables = self.cache.fork_many(&parent.table, num_computed_tokens, num_children);
        let child = |(id, table)| Sequence {
            id: SeqId(id),
            epoch: Epoch::default(),
            tokens: tokens.to_vec(),
            hashes: hashes.clone(),
            num_computed_tokens,
            num_in_flight_tokens: 0,
            num_unread_tokens: 0,
            table,
            num_sent_blocks: 0,
            on_device: false,
            last_step: None,
            last_sampled: None,
            last_served: self.schedule,
            planned_in: 0,
            num_preemptions: 0,
            served_tokens: 0,
            refusal: None,
            holds: Holds::default(),
            counted_as: None,
            counted_as_swapped: false,
            swapped: None,
            ..*parent
        };
        Ok((first..).zip(tables).map(child).collect())
    }
}

impl Sequence {
    /// Tokens whose blocks a fork after `num_tokens` shares: what is computed, but for the last, which it samples from.
    fn num_shared_tokens(&self, num_tokens: u32) -> u32 {
        self.num_computed_tokens.min(num_tokens - 1)
    }
}

/// A sequence whose blocks are on the device.
fn forkable(sequences: &Sequences, parent: SeqId) -> Result<&Sequence, ForkError> {
    let holds_blocks = |seq: &&Sequence| seq.status == SeqStatus::Running && seq.transfer.is_none();
    sequences.get(parent).filter(holds_blocks).ok_or(ForkError::NotRunning(parent))
}
