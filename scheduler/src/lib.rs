//! Continuous batching: which sequences compute how many tokens in the next step, and in which blocks of the KV cache.
//!
//! It stands above `quire-kvcache`, which it asks for blocks, and knows nothing of what runs the model: a
//! [`StepPlan`] goes out, [`SequenceResult`]s come back. It reads no clock and draws no numbers, so that the same
//! calls give the same decisions, in an engine and in a simulation.
//!
//! There is no prefill phase and no decode phase. A sequence has computed some of its tokens, and a step grants it
//! more, within one token budget: chunked prompts, prefix hits and resumed sequences are cases of that rule.
//!
//! A policy decides the order. This one serves short prompts first, but lets nobody wait for ever: a thousand tokens
//! more count as a second later.
//!
//! ```
//! use std::time::Duration;
//!
//! use quire_kvcache::{KvCacheConfig, KvCacheManager};
//! use quire_scheduler::{
//!     FinishReason, NewSequence, PolicyRegistry, Rank, Scheduler, SchedulerConfig, SchedulerPolicy, SequenceResult,
//!     SequenceView, Time, testing::check_policy,
//! };
//!
//! struct ShortFirst;
//!
//! impl SchedulerPolicy for ShortFirst {
//!     fn name(&self) -> &str {
//!         "short-first"
//!     }
//!
//!     fn rank(&self, seq: &SequenceView<'_>) -> Rank {
//!         Rank::from(seq.arrival() + Duration::from_millis(seq.num_prompt_tokens().into()))
//!     }
//! }
//!
//! // The test bench tries it on tiny pools, aborts, forks and late results.
//! check_policy(|_seed| Box::new(ShortFirst), 0..10);
//!
//! let mut policies = PolicyRegistry::default();
//! policies.register("short-first", || ShortFirst);
//!
//! let cache = KvCacheManager::new(KvCacheConfig::new(64, 16))?;
//! let mut scheduler = Scheduler::new(SchedulerConfig::new(512), policies.build("short-first")?, cache)?;
//! let long = scheduler.add(NewSequence::new(vec![1; 300], 2, Time::ZERO))?;
//! let short = scheduler.add(NewSequence::new(vec![2; 10], 2, Time::ZERO))?;
//!
//! // One step: plan it, run the model (here: always token 7), commit it.
//! let plan = scheduler.schedule(Time::ZERO)?.expect("two sequences wait");
//! assert_eq!(plan.rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [short, long]);
//!
//! // The next step may be planned before the results of the first are there: run-ahead.
//! let next = scheduler.schedule(Time::from_millis(1))?.expect("both go on");
//! assert_eq!(next.rows[0].start, 10); // the position of a token that nobody has read yet
//!
//! for plan in [plan, next] {
//!     let result = |row: &quire_scheduler::PlannedRow| {
//!         SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None }
//!     };
//!     let results: Vec<_> = plan.rows.iter().filter(|row| row.samples).map(result).collect();
//!     let report = scheduler.commit(plan.step, &results)?;
//!     assert!(report.finished.iter().all(|seq| seq.reason == FinishReason::Length));
//! }
//! assert!(!scheduler.has_unfinished());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Run-ahead
//!
//! [`Scheduler::schedule`] may be called again before the last step has been committed. What the host does not know
//! yet is described: a row's input is [`InputToken::Sampled`]. A preemption raises a sequence's [`Epoch`]; results of
//! an earlier one are dropped, and the position is sampled again. Whatever was computed past a finish is dropped.
//!
//! # Invariants
//!
//! Under every policy, sensible or not:
//!
//! - No step exceeds `max_num_batched_tokens`, and no more than `max_num_seqs` sequences run.
//! - A sequence runs only once there are blocks for all its known tokens. What could never run is refused on arrival.
//! - The oldest running sequence is never preempted, and is served first when it has been passed over 32 times: so
//!   every sequence of a finite load ends.
//! - A step that has work and plans nothing is an error with a dump, unless all work waits for the commit of an open
//!   step.
//! - A block that an open step may touch is handed out to nobody else.
//! - Only what is committed enters the prefix cache.
//!
//! [`testing`] checks them on a policy of one's own.

mod builder;
mod commit;
mod config;
pub mod cost;
mod digest;
mod error;
mod explain;
mod fork;
mod hold;
mod ids;
mod log;
mod observer;
mod order;
mod plan;
pub mod plot;
mod policies;
mod policy;
mod preemption;
mod queue;
pub mod record;
mod refusal;
mod result;
mod running;
mod saved;
mod scheduler;
mod sequence;
pub mod simulate;
mod slots;
mod state;
mod stats;
#[cfg(test)]
mod stuck;
pub mod testing;
mod thrash;
pub mod trace;
pub mod tune;

pub use builder::StepBuilder;
pub use config::{CapacityMode, SchedulerConfig};
pub use digest::PlanDigest;
pub use error::{
    AddError, CommitError, ConfigError, Error, ForkError, HoldError, Result, ScheduleError, UnknownPolicy,
};
pub use explain::{Explanation, WaitClass, WaitReason};
pub use hold::HoldReason;
pub use ids::{ClassId, Epoch, SeqId, TenantId, Time};
pub use log::{LogFilter, LogObserver};
pub use observer::StepObserver;
pub use plan::{InputToken, PlannedRow, ReplacedBlock, RowKind, StepPlan};
pub use policies::{
    Fair, Fcfs, LengthBucket, PolicyRegistry, PrefixAware, Priority, ShortestFirst, standard_admit,
    standard_plan, standard_serve,
};
pub use policy::{EventKind, PreemptionMode, Rank, Rerank, SchedEvent, SchedulerPolicy};
pub use preemption::{Preemption, PreemptionCosts, Rates};
pub use queue::ClassHeads;
pub use quire_kvcache::{
    BlockCopy, BlockId, CacheSalt, Direction, HostBlockId, KvCacheConfig, KvCacheManager, StepId, Transfer,
    TransferId,
};
pub use refusal::Refusal;
pub use result::{CommitReport, SequenceResult};
pub use running::Running;
pub use scheduler::Scheduler;
pub use sequence::{FinishReason, FinishedSequence, NewSequence, SeqStatus, SequenceView};
pub use stats::{SchedulerStats, ThrashStats};
