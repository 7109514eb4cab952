//! Sequences as words.

use std::collections::VecDeque;

use quire_kvcache::{Saved, saved};

use crate::ids::{ClassId, Epoch, SeqId, TenantId, Time};
use crate::policy::Rank;
use crate::sequence::{SeqStatus, Sequence};
use crate::slots::Sequences;

saved!(SeqId { 0 });
saved!(Epoch { 0 });
saved!(TenantId { 0 });
saved!(ClassId { 0 });
saved!(Rank { 0, 1 });

/// Ids that a restored list may reach over, from its first sequence to the next to come.
const MAX_SPAN: u64 = 1 << 26;

impl Saved for Time {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.as_nanos());
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        u64::restore(words).map(Self::from_nanos)
    }
}

impl Saved for SeqStatus {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(match self {
            Self::Waiting => 0,
            Self::Running => 1,
            Self::Swapped => 2,
            Self::Finished(_) => unreachable!("one that has ended is kept nowhere"),
        });
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        [Self::Waiting, Self::Running, Self::Swapped].get(usize::restore(words)?).copied()
    }
}

impl Sequences {
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        self.next_id().save(words);
        self.len().save(words);
        self.iter().for_each(|seq| seq.save(words));
    }

    /// `None` also where ids are not in order, or a sequence is longer than `max_len`.
    pub(crate) fn restore(words: &mut &[u64], max_len: u32) -> Option<Self> {
        let (SeqId(next), len): (SeqId, usize) = Saved::restore(words)?;
        let mut slots = VecDeque::new();
        let mut base = next;
        for place in 0..len {
            let seq = Sequence::restore(words, max_len)?;
            if place == 0 {
                base = seq.id.0;
            }
            let gap = seq.id.0.checked_sub(base + slots.len() as u64)?;
            if seq.id.0 >= next || seq.id.0 - base > MAX_SPAN {
                return None;
            }
            slots.extend((0..gap).map(|_| None));
            slots.push_back(Some(Box::new(seq)));
        }
        let rest = next - base - slots.len() as u64;
        if rest > MAX_SPAN {
            return None;
        }
        slots.extend((0..rest).map(|_| None));
        Some(Self::from_slots(base, slots, len))
    }
}

impl Sequence {
    fn save(&self, words: &mut Vec<u64>) {
        self.num_tokens().save(words);
        self.id.save(words);
        self.arrival.save(words);
        self.tenant.save(words);
        self.priority.save(words);
        self.rank.save(words);
        self.class.save(words);
        self.status.save(words);
        self.epoch.save(words);
        self.num_prompt_tokens.save(words);
        self.max_output_tokens.save(words);
        self.runs_ahead.save(words);
        self.num_computed_tokens.save(words);
        self.num_in_flight_tokens.save(words);
        self.num_unread_tokens.save(words);
        self.table.save(words);
        self.swapped.save(words);
        self.transfer.save(words);
        self.hashes.save(words);
        self.num_sent_blocks.save(words);
        self.on_device.save(words);
        self.last_step.save(words);
        self.last_sampled.save(words);
        self.last_served.save(words);
        self.planned_in.save(words);
        self.num_cached_tokens.save(words);
        self.num_preemptions.save(words);
        self.first_admitted.save(words);
        self.served_tokens.save(words);
        self.waits_since.save(words);
        self.holds.save(words);
    }

    fn restore(words: &mut &[u64], max_len: u32) -> Option<Self> {
        let num_tokens = u32::restore(words).filter(|num_tokens| *num_tokens <= max_len)?;
        Some(Self {
            tokens: vec![0; num_tokens as usize],
            id: Saved::restore(words)?,
            arrival: Saved::restore(words)?,
            tenant: Saved::restore(words)?,
            priority: Saved::restore(words)?,
            rank: Saved::restore(words)?,
            class: Saved::restore(words)?,
            status: Saved::restore(words)?,
            epoch: Saved::restore(words)?,
            num_prompt_tokens: Saved::restore(words)?,
            max_output_tokens: Saved::restore(words)?,
            runs_ahead: Saved::restore(words)?,
            num_computed_tokens: Saved::restore(words)?,
            num_in_flight_tokens: Saved::restore(words)?,
            num_unread_tokens: Saved::restore(words)?,
            table: Saved::restore(words)?,
            swapped: Saved::restore(words)?,
            transfer: Saved::restore(words)?,
            hashes: Saved::restore(words)?,
            num_sent_blocks: Saved::restore(words)?,
            on_device: Saved::restore(words)?,
            last_step: Saved::restore(words)?,
            last_sampled: Saved::restore(words)?,
            last_served: Saved::restore(words)?,
            planned_in: Saved::restore(words)?,
            num_cached_tokens: Saved::restore(words)?,
            num_preemptions: Saved::restore(words)?,
            first_admitted: Saved::restore(words)?,
            served_tokens: Saved::restore(words)?,
            waits_since: Saved::restore(words)?,
            holds: Saved::restore(words)?,
            refusal: None,
            counted_as: None,
            counted_as_swapped: false,
        })
    }
}
