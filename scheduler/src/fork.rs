//! Forks: several answers to one prompt.

use quire_kvcache::{BlockHashes, NoBlocks};

use crate::config::CapacityMode;
use crate::error::ForkError;
use crate::ids::{Epoch, SeqId};
use crate::policy::EventKind;
use crate::scheduler::Scheduler;
use crate::sequence::{SeqStatus, Sequence};
use crate::state::State;

impl Scheduler {
    /// Makes a second sequence out of the first `num_tokens` tokens of a running one, at least its prompt. The child
    /// shares the blocks computed so far, a partial last one too, which is copied when either writes into it. It runs
    /// at once and computes the last of its tokens again, to sample for itself.
    ///
    /// # Errors
    /// A [`ForkError`], and nothing has changed.
    pub fn fork(&mut self, parent: SeqId, num_tokens: u32) -> Result<SeqId, ForkError> {
        let id = self.state.sequences.next_id();
        let child = self.state.fork(parent, num_tokens, id)?;
        self.state.running.insert(&child);
        let arrival = child.arrival;
        self.state.sequences.push(child);
        self.state.observe(id, |observer, seq| observer.arrived(seq, arrival));
        self.event(id, EventKind::Arrived);
        Ok(id)
    }
}

impl State {
    /// In the mode `Guaranteed` a fork must be able to run to its end beside all others: as far as it does not share, and
    /// with a copy of the block that it shares in part.
    fn check_guaranteed(&self, parent: &Sequence, num_shared_tokens: u32) -> Result<(), NoBlocks> {
        if self.config.capacity_mode != CapacityMode::Guaranteed {
            return Ok(());
        }
        let capacity = self.cache.capacity();
        let all = self.running.ids().filter_map(|id| self.sequences.get(id));
        let growth: u32 = all.map(|seq| seq.growth(&self.cache)).sum();
        let num_shared_blocks = num_shared_tokens / capacity.block_size;
        let own = capacity.blocks_for(parent.worst_case_tokens()) - num_shared_blocks;
        let usage = self.cache.usage();
        let (need, available) = (growth + own, usage.available());
        if need <= available { Ok(()) } else { Err(NoBlocks { need, available, retiring: usage.retiring }) }
    }

    fn fork(&mut self, parent: SeqId, num_tokens: u32, id: SeqId) -> Result<Sequence, ForkError> {
        let holds_blocks = |seq: &&Sequence| seq.status == SeqStatus::Running && seq.transfer.is_none();
        let seq = self.sequences.get(parent).filter(holds_blocks);
        let parent = seq.ok_or(ForkError::NotRunning(parent))?;
        let (min, max) = (parent.num_prompt_tokens, parent.num_tokens());
        if !(min..=max).contains(&num_tokens) {
            return Err(ForkError::OutOfRange { given: num_tokens, min, max });
        }
        if num_tokens - min >= parent.max_output_tokens {
            return Err(ForkError::NoOutput { given: num_tokens });
        }
        let limit = self.config.max_num_seqs;
        if self.running.len() >= limit as usize {
            return Err(ForkError::SeqLimit { limit });
        }
        let num_computed_tokens = parent.num_computed_tokens.min(num_tokens - 1);
        self.check_guaranteed(parent, num_computed_tokens).map_err(ForkError::NoBlocks)?;
        let tokens = parent.tokens[..num_tokens as usize].to_vec();
        let mut hashes = BlockHashes::new(parent.hashes.salt());
        self.cache.hasher().extend(&mut hashes, &tokens);
        Ok(Sequence {
            id,
            epoch: Epoch::default(),
            tokens,
            hashes,
            num_computed_tokens,
            num_in_flight_tokens: 0,
            num_unread_tokens: 0,
            table: self.cache.fork(&parent.table, num_computed_tokens),
            num_sent_blocks: 0,
            on_device: false,
            last_step: None,
            last_sampled: None,
            last_served: self.schedule,
            planned_in: 0,
            num_preemptions: 0,
            served_tokens: 0,
            refusal: None,
            counted_as: None,
            counted_as_swapped: false,
            swapped: None,
            ..*parent
        })
    }
}
