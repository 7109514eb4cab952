//! Runs step batches on a device: worker, model runner, row state and sampling.
//!
//! The engine sees the [`Executor`] trait; this crate sees blocks as ids, models as arithmetic and devices as
//! [`quire_kernels::Kernels`].

mod batch;
mod error;
mod executor;
mod graphs;
mod local;
mod memory;
mod output;
mod pool;
mod row;
mod runner;
pub mod testing;
mod worker;

pub use batch::{AddedRow, PlannedRow, RowId, RowSampling, StepBatch, TokenMasks};
pub use error::{BatchError, ExecutorError};
pub use executor::{DeviceCapacity, Executor, Ticket};
pub use graphs::GraphSizes;
pub use local::LocalExecutor;
pub use memory::{
    MaxModelLen, MeasuredMemory, MemoryAdvice, MemoryError, MemoryPlan, MemoryProbe, MemoryReport,
    MemoryRequest, ModelSizes, PoolSize, process_resident_bytes,
};
pub use output::{RowOutput, StepOutput, TokenLogprobs};
pub use pool::KvPool;
pub use runner::{ModelRunner, PendingStep, RunnerConfig};
pub use worker::{LoadModel, Worker, WorkerConfig};
