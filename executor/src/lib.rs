//! Runs step batches on a device: worker, model runner, row state and sampling.
//!
//! The engine sees the [`Executor`] trait; this crate sees blocks as ids, models as arithmetic and devices as
//! [`quire_kernels::Kernels`].

mod batch;
mod error;
mod executor;
mod output;
mod row;
pub mod testing;

pub use batch::{AddedRow, PlannedRow, RowId, RowSampling, StepBatch, TokenMasks};
pub use error::{BatchError, ExecutorError};
pub use executor::{DeviceCapacity, Executor, Ticket};
pub use output::{RowOutput, StepOutput, TokenLogprobs};
