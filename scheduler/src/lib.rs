//! Continuous batching.

mod builder;
mod commit;
mod config;
mod error;
mod explain;
mod ids;
mod observer;
mod plan;
mod policies;
mod policy;
mod queue;
mod refusal;
mod result;
mod running;
mod scheduler;
mod sequence;
mod slots;
mod state;
mod stats;

pub use builder::StepBuilder;
pub use config::SchedulerConfig;
pub use error::{AddError, CommitError, ConfigError, Error, ForkError, Result, ScheduleError, UnknownPolicy};
pub use explain::{Explanation, WaitReason};
pub use ids::{ClassId, Epoch, SeqId, TenantId, Time};
pub use observer::{LogObserver, StepObserver};
pub use plan::{InputToken, PlannedRow, ReplacedBlock, RowKind, StepPlan};
pub use policies::{Fcfs, PolicyRegistry, standard_plan};
pub use policy::{EventKind, PreemptionMode, Rank, Rerank, SchedEvent, SchedulerPolicy};
pub use queue::ClassHeads;
pub use quire_kvcache::{BlockCopy, BlockId, CacheSalt, StepId};
pub use refusal::Refusal;
pub use result::{CommitReport, SequenceResult};
pub use running::Running;
pub use scheduler::Scheduler;
pub use sequence::{FinishReason, FinishedSequence, NewSequence, SeqStatus, SequenceView};
pub use stats::SchedulerStats;
