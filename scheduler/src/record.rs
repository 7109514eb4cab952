//! The flight recorder: what was asked of a scheduler and what it decided, in a ring of memory that is always on, and
//! the replay of it.
//!
//! A recording holds no text and no token ids: lengths, times, and names of blocks (half of their keyed hashes), by which
//! a replay finds the same prefix hits. Decisions are not written out: replaying the calls makes them again, and a
//! digest that goes along tells whether all of them are the same, bit for bit.
//!
//! ```
//! use std::time::Duration;
//!
//! use quire_scheduler::record::{RecordedScheduler, Recording};
//! use quire_scheduler::{
//!     Fcfs, KvCacheConfig, KvCacheManager, NewSequence, PolicyRegistry, Scheduler, SchedulerConfig, SequenceResult, Time,
//! };
//!
//! let cache = KvCacheManager::new(KvCacheConfig::new(64, 16))?;
//! let scheduler = Scheduler::new(SchedulerConfig::new(512), Box::new(Fcfs), cache)?;
//! let mut scheduler = RecordedScheduler::new(scheduler);
//! scheduler.add(NewSequence::new(vec![1; 40], 2, Time::ZERO))?;
//! while let Some(plan) = scheduler.schedule(Time::from_millis(1))? {
//!     let row = &plan.rows[0];
//!     let result = SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None };
//!     scheduler.note_device_time(Duration::from_micros(500));
//!     scheduler.commit(plan.step, &[result], Time::from_millis(2))?;
//! }
//!
//! let bytes = scheduler.recorder().recording().to_bytes();
//! let recording = Recording::from_bytes(&bytes)?;
//! let replayed = recording.replay(recording.policy(&PolicyRegistry::default())?)?;
//! assert_eq!(replayed.num_steps, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod call;
mod codec;
mod decode;
mod encode;
mod error;
mod file;
mod read;
mod recorded;
mod replay;
mod ring;

pub use error::RecordingError;
pub use file::{FORMAT_VERSION, Recording};
pub use read::{RecordedStep, Summary};
pub use recorded::RecordedScheduler;
pub use replay::Replayed;
pub use ring::{DEFAULT_RING_BYTES, FlightRecorder};
