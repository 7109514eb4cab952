//! Tenants share alike.

use std::collections::BTreeMap;
use std::time::Duration;

use quire_kvcache::Saved;

use crate::builder::StepBuilder;
use crate::ids::{ClassId, SeqId, Time};
use crate::policies::class_order::ClassOrder;
use crate::policies::{standard_admit, standard_serve};
use crate::policy::{EventKind, Rank, Rerank, SchedEvent, SchedulerPolicy};
use crate::queue::ClassHeads;
use crate::sequence::SequenceView;

/// Tenants share alike: the one with the smallest counter of tokens is next, and its requests run in the order of
/// arrival. A prompt token costs 10 where it is computed and 1 where the prefix cache has it, a generated one 20; what a
/// preemption makes the device compute again costs nothing. This is the virtual token counter of Sheng et al., "Fairness in
/// Serving Large Language Models" (OSDI 2024), with a price for cached tokens and a virtual time as in generalized processor
/// sharing (Parekh and Gallager, 1993): a tenant that comes, or comes back, starts where a tenant would be that had been served
/// its share all the time. So nobody saves up, and who was served much is not overtaken for ever by tenants that are new.
///
/// Wait bound: a tenant is admitted while its counter is the smallest, and may then be charged for the outputs of as many as
/// run. With `R` sequences that run at once, `C` what one request costs at most, `m` tenants that run or wait at one time, at
/// most, and `W` what is left of its own tenant's when it comes, a request starts before the device has served
/// `m × (W + (R + 1) × C)`, whatever other tenants send, and however many there are in all.
#[derive(Clone, Debug, Default)]
pub struct Fair {
    /// Counters of tenants of which somebody waits; of those of which nobody does any more, once that is noticed.
    waiting: ClassOrder,
    idle: ClassOrder,
    /// How many sequences of each tenant have not ended.
    active: BTreeMap<ClassId, u64>,
    /// The virtual time: where the counter of who comes begins.
    floor: u64,
    /// What was served and is not shared among the active tenants yet: less than one unit each.
    unshared: u64,
}

const CACHED_TOKEN: u64 = 1;
const COMPUTED_TOKEN: u64 = 10;
const GENERATED_TOKEN: u64 = 20;

impl Fair {
    fn note_waiting(&mut self, class: ClassId) {
        if self.waiting.get(class).is_none() {
            let counter = self.idle.remove(class).unwrap_or_default();
            self.waiting.set(class, counter.max(self.floor));
        }
    }

    fn charge(&mut self, class: ClassId, cost: u64) {
        self.unshared += cost;
        let num_active = self.active.len().max(1) as u64;
        let share = self.unshared / num_active;
        self.unshared %= num_active;
        self.raise_floor(self.floor.saturating_add(share));
        match self.waiting.get(class) {
            Some(counter) => self.waiting.set(class, counter.saturating_add(cost)),
            None => self.idle.set(class, self.idle.get(class).unwrap_or_default().saturating_add(cost)),
        }
    }

    fn note_end(&mut self, class: ClassId) {
        if let Some(num_active) = self.active.get_mut(&class) {
            *num_active -= 1;
            if *num_active == 0 {
                self.active.remove(&class);
            }
        }
    }

    fn charge_prompt(&mut self, step: &StepBuilder<'_>, seq: SeqId) {
        let Some(seq) = step.seq(seq).filter(|seq| seq.num_preemptions() == 0) else { return };
        let num_cached = u64::from(seq.num_cached_tokens());
        let num_computed = u64::from(seq.num_prompt_tokens()).saturating_sub(num_cached);
        self.charge(seq.class(), num_cached * CACHED_TOKEN + num_computed * COMPUTED_TOKEN);
    }

    /// Below the floor a counter says no more than that there is none.
    fn raise_floor(&mut self, counter: u64) {
        self.floor = self.floor.max(counter);
        while let Some((_, class)) = self.idle.first().filter(|(counter, _)| *counter <= self.floor) {
            self.idle.remove(class);
        }
    }
}

impl SchedulerPolicy for Fair {
    fn name(&self) -> &str {
        "fair"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        ClassId(seq.tenant().0)
    }

    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: Time) -> Option<ClassId> {
        while let Some((counter, class)) = self.waiting.first() {
            if heads.of(class).is_some() {
                self.raise_floor(counter);
                return Some(class);
            }
            self.waiting.remove(class);
            self.idle.set(class, counter);
        }
        heads.first().map(|head| head.class())
    }

    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        let seq = &event.seq;
        match event.kind {
            EventKind::Arrived => {
                *self.active.entry(seq.class()).or_default() += 1;
                self.note_waiting(seq.class());
            }
            EventKind::Preempted | EventKind::Released => self.note_waiting(seq.class()),
            EventKind::Finished(_) => self.note_end(seq.class()),
            // A row that reaches the last known token samples the next.
            EventKind::Granted { .. } if seq.num_granted_tokens() >= seq.num_tokens() => {
                self.charge(seq.class(), GENERATED_TOKEN);
            }
            _ => {}
        }
        Rerank::None
    }

    /// Prompts are charged as they are admitted, so that one step does not admit from one tenant alone.
    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        standard_serve(self, step);
        while let Some(admitted) = standard_admit(self, step) {
            self.charge_prompt(step, admitted);
        }
    }

    fn max_overtaking(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn save(&self) -> Option<Vec<u64>> {
        let mut state = vec![self.floor, self.unshared];
        self.waiting.save(&mut state);
        self.idle.save(&mut state);
        self.active.save(&mut state);
        Some(state)
    }

    fn restore(&mut self, mut state: &[u64]) -> bool {
        let Some(((floor, unshared), (waiting, (idle, active)))) = Saved::restore(&mut state) else {
            return false;
        };
        *self = Self { waiting, idle, active, floor, unshared };
        state.is_empty()
    }
}
