//! Runs of the real scheduler and the real block manager in virtual time.
//!
//! Requests come as a trace says, a step takes as long as a cost model says, and nothing else is made up: the decisions
//! are those that an engine with the same limits would make. The same input gives the same run.
//!
//! ```
//! use quire_scheduler::simulate::{Setup, simulate};
//! use quire_scheduler::trace::Trace;
//! use quire_scheduler::{Fcfs, KvCacheConfig, SchedulerConfig};
//!
//! let trace = Trace::parse_csv("arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.01,300,5\n")?;
//! let setup = Setup::new(SchedulerConfig::new(4096), KvCacheConfig::new(1000, 16));
//! let run = simulate(&trace, &trace.arrival_times(None)?, &setup, Box::new(Fcfs))?;
//! assert_eq!((run.report.num_finished, run.report.output_tokens), (2, 25));
//! assert!(run.report.ttft_ms.max < run.report.duration_s * 1e3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod refusals;
mod report;
mod run;
mod timeline;
mod track;

use std::time::Duration;

use quire_kvcache::KvCacheConfig;

use crate::config::SchedulerConfig;
use crate::cost::CostModel;
use crate::error::{CommitError, ConfigError, ScheduleError};
use crate::preemption::Rates;
use crate::trace::{Room, TraceError};

pub use refusals::Refused;
pub use report::{Percentiles, Report, TenantReport, Waste};
pub use run::{Simulated, simulate};
pub use timeline::{Point, Timeline};

/// What a simulated engine is like.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The limits of a step.
    pub scheduler: SchedulerConfig,
    /// The pool.
    pub cache: KvCacheConfig,
    /// How long steps take.
    pub cost: CostModel,
    /// Steps that may be open at once: 2 is an engine that plans a step while one runs, 1 is one that does not.
    pub max_open_steps: usize,
    /// What requests give as `max_tokens` where the trace does not say; `None`: they know how long their output will be. Policies that look
    /// at it, and the capacity mode `guaranteed`, see this number.
    pub max_output_tokens: Option<u32>,
}

impl Setup {
    /// With the default cost model, run-ahead, and outputs whose lengths are known.
    pub fn new(scheduler: SchedulerConfig, cache: KvCacheConfig) -> Self {
        Self { scheduler, cache, cost: CostModel::default(), max_open_steps: 2, max_output_tokens: None }
    }

    /// How long a request may get.
    pub fn room(&self) -> Room {
        Room { max_tokens: self.max_output_tokens, ..Room::new(&self.scheduler, &self.cache) }
    }

    /// What an engine would have measured of such a device; `None` where the model does not say what either way costs.
    fn rates(&self) -> Option<Rates> {
        let block_bytes: u64 = self.cache.groups.iter().map(|group| group.block_bytes).sum();
        let CostModel { swapped_block_us, prefill_token_us, .. } = self.cost;
        let is_known = block_bytes > 0 && swapped_block_us > 0.0 && prefill_token_us > 0.0;
        is_known.then(|| Rates {
            swap_bytes_per_s: block_bytes as f64 * 1e6 / swapped_block_us,
            prefill_tokens_per_s: 1e6 / prefill_token_us,
        })
    }
}

/// Why a run cannot be simulated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The limits cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The pool cannot be used.
    #[error(transparent)]
    Cache(#[from] quire_kvcache::Error),
    /// The requests cannot come when they should.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Time runs out: the cost model is wrong.
    #[error(
        "step {step} takes {:e} s by the cost model, and would end after more than 1e10 s: are its terms microseconds?",
        step_time.as_secs_f64()
    )]
    TooLong {
        /// The step.
        step: u64,
        /// How long it takes, or the longest that a clock can say.
        step_time: Duration,
    },
    /// A step could not be planned: a bug of the policy or of this crate.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Results did not belong to their step: a bug of this crate.
    #[error(transparent)]
    Commit(#[from] CommitError),
}
