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
        let children = self.state.fork(parent, Kept { num_tokens, next: None }, num_children)?;
        Ok(children.into_iter().map(|child| self.start_fork(child)).collect())
    }

    /// Makes a second sequence out of the first `num_tokens` tokens of a running one and `next`, a token that the running
    /// one need not have: another way to go on from there, as in a beam search. See [`fork`](Self::fork).
    ///
    /// # Errors
    /// A [`ForkError`], and nothing has changed.
    pub fn fork_with(&mut self, parent: SeqId, num_tokens: u32, next: u32) -> Result<SeqId, ForkError> {
        let children = self.state.fork(parent, Kept { num_tokens, next: Some(next) }, 1)?;
        Ok(children.into_iter().map(|child| self.start_fork(child)).fold(parent, |_, child| child))
    }

    /// Puts `token` in the place of the token that a running sequence has sampled last, which nothing has been computed
    /// from: a sequence that [runs ahead](crate::NewSequence::runs_ahead) has hardly ever such a token. The device is given the
    /// sequence anew, with the blocks that it has.
    ///
    /// # Errors
    /// A [`ForkError`], and nothing has changed.
    pub fn replace_last(&mut self, seq: SeqId, token: u32) -> Result<(), ForkError> {
        self.state.replace_last(seq, token)
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

/// What a child has of its parent.
#[derive(Clone, Copy)]
struct Kept {
    num_tokens: u32,
    /// What it goes on with instead.
    next: Option<u32>,
}

impl Kept {
    /// Tokens of the child.
    fn num_all(self) -> u32 {
        self.num_tokens + u32::from(self.next.is_some())
    }
}

impl State {
    fn check_fork(&self, parent: SeqId, kept: Kept, num_children: u32) -> Result<(), ForkError> {
        let parent = forkable(&self.sequences, parent)?;
        let (given, min, max) = (kept.num_tokens, parent.num_prompt_tokens, parent.num_tokens());
        if !(min..=max).contains(&given) {
            return Err(ForkError::OutOfRange { given, min, max });
        }
        let num_tokens = kept.num_all();
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

    /// Children, with ids that follow each other.
    fn fork(&mut self, parent: SeqId, kept: Kept, num_children: u32) -> Result<Vec<Sequence>, ForkError> {
        self.check_fork(parent, kept, num_children)?;
        let SeqId(first) = self.sequences.next_id();
        let parent = forkable(&self.sequences, parent)?;
        let num_computed_tokens = parent.num_shared_tokens(kept.num_all());
        let tokens: Vec<u32> =
            parent.tokens[..kept.num_tokens as usize].iter().copied().chain(kept.next).collect();
        let num_full_blocks = (kept.num_tokens / self.cache.config().block_size) as usize;
        let mut hashes = BlockHashes::new(parent.hashes.salt());
        parent.hashes.as_slice().iter().take(num_full_blocks).for_each(|hash| hashes.push(*hash));
        if kept.next.is_some() && self.cache.config().enable_prefix_caching {
            self.cache.hasher().extend(&mut hashes, &tokens);
        }
        let tables = self.cache.fork_many(&parent.table, num_computed_tokens, num_children);
        let child = |(id, table)| Sequence {
            id: SeqId(id),
            epoch: Epoch::default(),
            tokens: tokens.clone(),
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

    fn replace_last(&mut self, id: SeqId, token: u32) -> Result<(), ForkError> {
        let num_tokens = forkable(&self.sequences, id)?.num_tokens();
        let is_free = |seq: &&mut Sequence| seq.num_output_tokens() > 0 && seq.next_position() < num_tokens;
        let seq = self.sequences.get_mut(id).filter(is_free).ok_or(ForkError::Computed(id))?;
        seq.tokens.truncate(num_tokens as usize - 1);
        seq.hashes.truncate(seq.tokens.len(), self.cache.config().block_size);
        seq.tokens.push(token);
        if self.cache.config().enable_prefix_caching {
            self.cache.hasher().extend(&mut seq.hashes, &seq.tokens);
        }
        (seq.num_sent_blocks, seq.last_sampled) = (0, None);
        if std::mem::take(&mut seq.on_device) {
            self.released.push(id);
        }
        Ok(())
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
