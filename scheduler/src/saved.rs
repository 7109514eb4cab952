//! The whole state of a scheduler as words, and a scheduler of that state: what the flight recorder's checkpoints are.
//!
//! Of tokens only their number is kept, and of hashes the half by which blocks are named, as everywhere in a recording.
//! Why sequences were last refused is not kept either: the next step finds it again.

mod sequence;
mod sound;

use quire_kvcache::{KvCacheConfig, KvCacheManager, Saved, saved};

use crate::config::SchedulerConfig;
use crate::policy::SchedulerPolicy;
use crate::preemption::Rates;
use crate::scheduler::Scheduler;
use crate::slots::Sequences;
use crate::state::{Counters, OpenRow, OpenStep};

saved!(OpenRow { seq, epoch, num_tokens, samples });
saved!(OpenStep { id, rows });
saved!(Rates { swap_bytes_per_s, prefill_tokens_per_s });
saved!(Counters { num_steps, num_scheduled_tokens, num_preemptions, num_swaps });

impl Scheduler {
    /// The state, if the policy can save its own.
    pub(crate) fn save(&self) -> Option<Vec<u64>> {
        let mut words = Vec::new();
        self.policy.save()?.save(&mut words);
        let state = &self.state;
        state.sequences.save(&mut words);
        state.cache.save(&mut words);
        state.open.save(&mut words);
        state.next_step.save(&mut words);
        state.schedule.save(&mut words);
        state.released.save(&mut words);
        state.preempted.save(&mut words);
        state.transfers.save(&mut words);
        state.owners.save(&mut words);
        state.rates.save(&mut words);
        state.thrash.save(&mut words);
        state.counters.save(&mut words);
        Some(words)
    }

    /// A scheduler of a saved state, without observers; `policy` is as it was built. `None` if that is no state that such
    /// a scheduler can be in.
    pub(crate) fn restore(
        config: SchedulerConfig,
        mut policy: Box<dyn SchedulerPolicy>,
        pool: KvCacheConfig,
        mut words: &[u64],
    ) -> Option<Self> {
        let words = &mut words;
        let policy_state: Vec<u64> = Saved::restore(words)?;
        if !policy.restore(&policy_state) {
            return None;
        }
        let sequences = Sequences::restore(words, config.max_model_len)?;
        let tables: Vec<_> = sequences.iter().map(|seq| &seq.table).collect();
        let swapped = sequences.iter().filter_map(|seq| seq.swapped.as_deref());
        let cache = KvCacheManager::restore(pool, words, &tables, swapped)?;
        let mut scheduler = Self::new(config, policy, cache).ok()?;
        let state = &mut scheduler.state;
        state.open = Saved::restore(words)?;
        state.next_step = Saved::restore(words)?;
        state.schedule = Saved::restore(words)?;
        state.released = Saved::restore(words)?;
        state.preempted = Saved::restore(words)?;
        state.transfers = Saved::restore(words)?;
        state.owners = Saved::restore(words)?;
        state.rates = Saved::restore(words)?;
        state.thrash = Saved::restore(words)?;
        state.counters = Saved::restore(words)?;
        state.sequences = sequences;
        (words.is_empty() && state.is_sound()).then_some(())?;
        scheduler.enter_sequences();
        Some(scheduler)
    }

    /// Queues are made of what their sequences say.
    fn enter_sequences(&mut self) {
        let state = &mut self.state;
        for seq in state.sequences.iter_mut() {
            if !seq.holds.is_empty() {
                state.num_held += 1;
            } else if seq.is_queued() {
                state.waiting.insert(seq);
            } else {
                state.running.insert(seq);
            }
            state.refused.recount(seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WaitClass;
    use crate::policies::Fcfs;
    use crate::sequence::NewSequence;
    use crate::{HoldReason, SeqId, SequenceResult, Time};

    fn pool() -> KvCacheConfig {
        KvCacheConfig { num_swap_blocks: 4, ..KvCacheConfig::new(12, 4) }
    }

    /// Two that run, one that waits, one that is held, two open steps, cached blocks.
    fn busy() -> Scheduler {
        let cache = KvCacheManager::new(pool()).unwrap();
        let config = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::new(40) };
        let mut scheduler = Scheduler::new(config, Box::new(Fcfs), cache).unwrap();
        for seq in 0..4 {
            scheduler.add(NewSequence::new(vec![seq; 9], 6, Time::from_nanos(seq.into()))).unwrap();
        }
        scheduler.hold(SeqId(3), HoldReason::Adapter).unwrap();
        let first = scheduler.schedule(Time::ZERO).unwrap().unwrap();
        scheduler.schedule(Time::ZERO).unwrap().unwrap();
        let result = |row: &crate::PlannedRow| SequenceResult {
            seq: row.seq,
            epoch: row.epoch,
            tokens: &[0],
            finish: None,
        };
        let results: Vec<_> = first.rows.iter().map(result).collect();
        scheduler.commit(first.step, &results).unwrap();
        scheduler.schedule(Time::ZERO).unwrap().unwrap();
        scheduler
    }

    fn restore(words: &[u64]) -> Option<Scheduler> {
        let config = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::new(40) };
        Scheduler::restore(config, Box::new(Fcfs), pool(), words)
    }

    #[test]
    fn a_restored_state_is_saved_as_the_same_words() {
        let words = busy().save().unwrap();
        let mut restored = restore(&words).unwrap();
        assert_eq!(restored.save().unwrap(), words);
        assert_eq!(restored.stats(), busy().stats());
        assert_eq!(restored.waiting_by_reason()[WaitClass::Adapter as usize], (WaitClass::Adapter, 1));
        let (plan, expected) = (restored.schedule(Time::ZERO), busy().schedule(Time::ZERO));
        assert_eq!(plan.unwrap(), expected.unwrap());
    }

    /// A file says what it likes: what is no state is refused, and what is taken for one can be gone on with.
    #[test]
    fn words_that_are_no_state_are_refused() {
        let words = busy().save().unwrap();
        let mut num_refused = 0;
        for len in 0..words.len() {
            assert!(restore(&words[..len]).is_none(), "{len} words");
        }
        for place in 0..words.len() {
            for value in [0, 1, 2, words[place] ^ 1, words[place] + 1, 1 << 31, u64::MAX] {
                let mut broken = words.clone();
                broken[place] = value;
                match restore(&broken) {
                    Some(mut restored) => drop(restored.schedule(Time::from_nanos(9))),
                    None => num_refused += 1,
                }
            }
        }
        assert!(num_refused > words.len(), "{num_refused} of {}", 7 * words.len());
    }
}
