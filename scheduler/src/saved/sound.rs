//! Whether a restored state is one that a scheduler can be in: a file says what it likes.

use std::collections::BTreeMap;

use crate::ids::{Epoch, SeqId};
use crate::sequence::{SeqStatus, Sequence};
use crate::state::{Counters, State};

/// Tokens and samples that open steps bring a sequence in one of its lives.
type InFlight = BTreeMap<(SeqId, Epoch), (u64, u64)>;

impl State {
    pub(super) fn is_sound(&self) -> bool {
        let ids = self.open.iter().map(|step| step.id).chain([self.next_step]);
        let mut in_flight = InFlight::new();
        for row in self.open.iter().flat_map(|step| &step.rows) {
            let (num_tokens, num_samples) = in_flight.entry((row.seq, row.epoch)).or_default();
            *num_tokens += u64::from(row.num_tokens);
            *num_samples += u64::from(row.samples);
        }
        ids.is_sorted_by(|step, next| step < next)
            && self.has_sound_counts()
            && self.sequences.iter().all(|seq| {
                let open = in_flight.get(&(seq.id, seq.epoch)).copied().unwrap_or_default();
                self.has_sound_lengths(seq) && self.has_sound_place(seq, open)
            })
    }

    /// Counts that only grow are far from their ends.
    fn has_sound_counts(&self) -> bool {
        let Counters { num_steps, num_scheduled_tokens, num_preemptions, num_swaps } = self.counters;
        let counts =
            [num_steps, num_scheduled_tokens, num_preemptions, num_swaps, self.schedule, self.next_step.0];
        let mut lives = self.sequences.iter().map(|seq| seq.epoch.0.max(seq.num_preemptions));
        let mut served = self.sequences.iter().map(|seq| seq.served_tokens);
        counts.iter().all(|count| *count <= u64::MAX / 2)
            && served.all(|count| count <= u64::MAX / 2)
            && lives.all(|count| count <= u32::MAX / 2)
            && self.thrash.is_sound()
    }

    fn has_sound_lengths(&self, seq: &Sequence) -> bool {
        let max_len = self.config.max_model_len.min(self.cache.capacity().max_len_that_fits());
        let [prompt, max_output, max_len] =
            [seq.num_prompt_tokens, seq.max_output_tokens, max_len].map(u64::from);
        let [num_tokens, computed, in_flight, unread] =
            [seq.num_tokens(), seq.num_computed_tokens, seq.num_in_flight_tokens, seq.num_unread_tokens]
                .map(u64::from);
        (1..=num_tokens).contains(&prompt)
            && max_output > 0
            && prompt + max_output <= max_len.max(prompt + 1)
            && prompt <= max_len
            && num_tokens + unread <= prompt + max_output
            && computed + in_flight <= num_tokens + unread
            && seq.last_served <= self.schedule
    }

    /// A running sequence has blocks for what it has been granted, a queued one has none on the device.
    fn has_sound_place(&self, seq: &Sequence, open: (u64, u64)) -> bool {
        let in_flight = (u64::from(seq.num_in_flight_tokens), u64::from(seq.num_unread_tokens));
        let num_slots = u64::from(seq.table.num_blocks()) * u64::from(self.cache.config().block_size);
        let has_room = num_slots >= u64::from(seq.num_computed_tokens) + in_flight.0;
        let runs = seq.status == SeqStatus::Running;
        let is_swapped = seq.status == SeqStatus::Swapped;
        let is_placed =
            if runs { has_room && open == in_flight } else { seq.table.is_empty() && in_flight == (0, 0) };
        is_placed
            && seq.num_sent_blocks <= seq.table.blocks().len()
            && seq.swapped.is_some() == is_swapped
            && (seq.transfer.is_none() || seq.status != SeqStatus::Waiting)
            && (seq.holds.is_empty() || !runs)
    }
}
