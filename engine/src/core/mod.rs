//! The engine's thread: the step loop, and the requests that are in it.
//!
//! ```text
//!   inbox ──► add ──► scheduler ──► StepPlan ──batch.rs──► StepBatch ──► executor
//!                         ▲                                                 │
//!   events ◄── emit ◄── commit ◄── SequenceResult ◄──results.rs── StepOutput
//! ```

mod active;
mod batch;
mod beams;
mod branch;
mod branches;
mod engine_core;
mod fork;
mod gate;
mod grammars;
mod inbox;
mod places;
mod rates;
mod recovery;
mod requests;
mod results;
mod rows;
mod step;
mod throughput;

pub(crate) use engine_core::{CoreParts, EngineCore, SharedStats, StepOrder};
pub(crate) use inbox::{Inbox, RequestKey};
pub(crate) use places::Place;
