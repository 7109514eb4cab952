//! Numbers for reports and metrics.

use quire_kvcache::{BlockUsage, Inconsistency, PrefixStats, SwapUsage};

use crate::scheduler::Scheduler;
use crate::state::State;

/// The scheduler at a glance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SchedulerStats {
    /// Sequences that hold blocks.
    pub num_running: usize,
    /// Sequences that wait, held ones among them.
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
    /// Those of them that moved blocks to the host.
    pub num_swaps: u64,
    /// Sequences whose blocks are on the host, or on their way there; they are among `num_waiting`.
    pub num_swapped: usize,
    /// How the swap space is used.
    pub swap: SwapUsage,
    /// Whether, and how often, admission was lowered after preemptions.
    pub thrash: ThrashStats,
}

/// Whether the scheduler lets fewer sequences run than `max_num_seqs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThrashStats {
    /// Sequences that may run for now; none if admission is not lowered.
    pub limit: Option<u32>,
    /// How often it was lowered since the start.
    pub num_times_lowered: u64,
}

impl Scheduler {
    /// The present numbers.
    pub fn stats(&self) -> SchedulerStats {
        let State { running, waiting, num_held, open, cache, counters, .. } = &self.state;
        SchedulerStats {
            num_running: running.len(),
            num_waiting: waiting.len() + num_held,
            num_open_steps: open.len(),
            blocks: cache.usage(),
            prefix: cache.prefix_stats(),
            num_steps: counters.num_steps,
            num_scheduled_tokens: counters.num_scheduled_tokens,
            num_preemptions: counters.num_preemptions,
            num_swaps: counters.num_swaps,
            num_swapped: self.state.refused.num_swapped(),
            swap: cache.swap_usage(),
            thrash: self.state.thrash.stats(),
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
