//! What is measured while serving, for the choice between swapping and computing again.

use std::collections::VecDeque;

use quire_scheduler::record::RecordedScheduler;
use quire_scheduler::{Rates, StepPlan};

/// How fast prompts are computed and blocks are moved.
#[derive(Debug)]
pub(super) struct MeasuredRates {
    swap_bytes_per_s: f64,
    prefill_tokens_per_s: Option<f64>,
    /// Of each open step, its tokens if prompts make up most of it.
    open: VecDeque<Option<u32>>,
}

/// How much a new measurement counts beside those before.
const WEIGHT: f64 = 0.2;

/// Tokens of prompts that a step must have for each decode, to be a measurement of prompts.
const MIN_TOKENS_PER_ROW: u32 = 8;

impl MeasuredRates {
    /// Blocks move as fast as the executor has measured; 0 where there is no swap space.
    pub(super) fn new(swap_bytes_per_s: u64) -> Self {
        Self { swap_bytes_per_s: swap_bytes_per_s as f64, prefill_tokens_per_s: None, open: VecDeque::new() }
    }

    pub(super) fn note_submitted(&mut self, plan: &StepPlan) {
        let num_rows = u32::try_from(plan.rows.len()).unwrap_or(u32::MAX);
        let is_prefill = plan.num_tokens >= num_rows.saturating_mul(MIN_TOKENS_PER_ROW) && num_rows > 0;
        self.open.push_back(is_prefill.then_some(plan.num_tokens));
    }

    pub(super) fn note_collected(&mut self, device_time_us: u64, scheduler: &mut RecordedScheduler) {
        let Some(Some(num_tokens)) = self.open.pop_front() else { return };
        if device_time_us == 0 || self.swap_bytes_per_s == 0.0 {
            return;
        }
        let measured = f64::from(num_tokens) * 1e6 / device_time_us as f64;
        let before = self.prefill_tokens_per_s.unwrap_or(measured);
        let prefill_tokens_per_s = before + WEIGHT * (measured - before);
        self.prefill_tokens_per_s = Some(prefill_tokens_per_s);
        scheduler.set_rates(Rates { swap_bytes_per_s: self.swap_bytes_per_s, prefill_tokens_per_s });
    }

    /// The device was reset.
    pub(super) fn forget_open(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use quire_kvcache::{KvCacheConfig, KvCacheManager};
    use quire_scheduler::{Fcfs, NewSequence, Scheduler, SchedulerConfig, SequenceResult, Time};

    use super::*;

    #[test]
    fn prompts_are_measured_and_decodes_are_not() {
        let cache = KvCacheManager::new(KvCacheConfig::new(64, 16)).unwrap();
        let scheduler = Scheduler::new(SchedulerConfig::new(512), Box::new(Fcfs), cache).unwrap();
        let mut scheduler = RecordedScheduler::new(scheduler);
        scheduler.add(NewSequence::new(vec![1; 100], 9, Time::ZERO)).unwrap();
        let mut rates = MeasuredRates::new(1_000_000);
        for (device_time_us, expected) in [(50_000, Some(2000.0)), (1000, Some(2000.0))] {
            let plan = scheduler.schedule(Time::ZERO).unwrap().unwrap();
            rates.note_submitted(&plan);
            rates.note_collected(device_time_us, &mut scheduler);
            let row = &plan.rows[0];
            let result = SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[1], finish: None };
            scheduler.commit(plan.step, &[result], Time::ZERO).unwrap();
            assert_eq!(scheduler.view().rates().map(|rates| rates.prefill_tokens_per_s), expected);
        }
    }
}
