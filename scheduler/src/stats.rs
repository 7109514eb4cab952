//! Numbers for reports and metrics.

use quire_kvcache::{BlockUsage, Inconsistency, PrefixStats};

use crate::scheduler::Scheduler;
use crate::state::State;

/// The scheduler at a glance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SchedulerStats {
    /// Sequences that hold blocks.
    pub num_running: usize,
    /// Sequences that wait.
    pub num_waiting: usize,
    /// Steps planned and not committed.
    pub num_open_steps: usize,
    /// How the blocks are used.
    pub blocks: BlockUsage,
    /// Hits and queries of the prefix cache, in tokens, since the start.
    pub prefix: PrefixStats,
    /// Steps planned since the start.
    pub num_steps: u64,
    /// Tokens granted since the start.
    pub num_scheduled_tokens: u64,
    /// Preemptions since the start.
    pub num_preemptions: u64,
}

impl Scheduler {
    /// The present numbers.
    pub fn stats(&self) -> SchedulerStats {
        let State { running, waiting, open, cache, counters, .. } = &self.state;
        SchedulerStats {
            num_running: running.len(),
            num_waiting: waiting.len(),
            num_open_steps: open.len(),
            blocks: cache.usage(),
            prefix: cache.prefix_stats(),
            num_steps: counters.num_steps,
            num_scheduled_tokens: counters.num_scheduled_tokens,
            num_preemptions: counters.num_preemptions,
        }
    }

    /// Checks the books of blocks against all sequences. O(blocks); debug builds do it at every commit.
    ///
    /// # Errors
    /// The first [`Inconsistency`] found, which is a bug.
    pub fn check(&self) -> Result<(), Inconsistency> {
        self.state.check()
    }
}

impl State {
    pub(crate) fn check(&self) -> Result<(), Inconsistency> {
        self.cache.check(self.sequences.iter().map(|seq| &seq.table))
    }
}
