//! Runs step batches on a device: worker, model runner, row state and sampling, and the plan of its memory.
//!
//! It stands between the engine, which sees the [`Executor`] trait, and models and kernels, which see neither
//! sequences nor batches. Blocks are ids here that somebody else hands out; the memory behind them is a [`KvPool`].
//!
//! ```text
//!  engine thread                        worker thread                              device
//!  submit(StepBatch) ----------------> ModelRunner::run: check, lay out, enqueue -> queue
//!  collect(Ticket)   <-- PendingStep --'                                              |
//!      \____________________________ waits for the read-back of ids ________________/
//! ```
//!
//! A *gated* row may choose only among tokens that its last one decides upon (a grammar). It is submitted like the others;
//! its logits wait, on the worker's thread, for [`Executor::provide_masks`], which the engine calls when it knows that
//! token, while the forward pass runs.
//!
//! A token that was sampled stays on the device and is the input of its row's next step there. So step `N + 1` can be
//! submitted before step `N` was collected.
//!
//! ```
//! use std::sync::Arc;
//!
//! use quire_executor::{
//!     AddedRow, Executor, LocalExecutor, LogitsProcessors, LogprobsMode, MaxModelLen, MemoryPlan, MemoryRequest, ModelSizes, PlannedRow,
//!     PoolSize, RowId, RowSampling, StepBatch, WorkerConfig, process_resident_bytes,
//! };
//! use quire_kernels::DType;
//! use quire_models::{Architecture, Checkpoint, Llama, LoadOptions, Loader, testing::TinyModel};
//!
//! let folder = tempfile::tempdir()?;
//! TinyModel::llama().write_folder(folder.path())?;
//! let checkpoint = Checkpoint::open(folder.path(), &LoadOptions::default())?;
//!
//! // Memory first: what does not fit is refused here, with a value that works.
//! let kernels = quire_kernels::reference::kernels();
//! let weight_bytes = checkpoint.check(&Llama.tensors(&checkpoint)?)?.num_bytes as usize;
//! let sizes = ModelSizes { architecture: &Llama, config: checkpoint.config(), weight_bytes };
//! let plan = MemoryPlan::new(&kernels, sizes, &MemoryRequest {
//!     max_num_batched_tokens: 64,
//!     max_num_seqs: 4,
//!     block_size: 16,
//!     max_model_len: MaxModelLen::Exactly(128),
//!     pool: PoolSize::Sequences { max_bytes: 1 << 30 },
//!     swap_bytes: 0,
//!     kv_dtype: DType::F32,
//!     max_logprobs: 5,
//!     logprobs_mode: LogprobsMode::default(),
//!     enforce_eager: false,
//!     graph_bytes: None,
//! })?;
//!
//! // Then the weights, on the worker's thread.
//! let mut executor = LocalExecutor::start(WorkerConfig {
//!     kernels,
//!     plan,
//!     kv_scales: Vec::new(),
//!     processors: LogitsProcessors::new(),
//!     probe: Arc::new(process_resident_bytes),
//!     load: Box::new(move |kernels| Llama.build(&Loader::new(&checkpoint, kernels, 128))),
//! })?;
//! eprintln!("{}", executor.report());
//!
//! // A prompt of three tokens; then a step for the token that it gave, submitted before that is known.
//! let row = RowId(0);
//! let plan = |num_tokens| PlannedRow {
//!     row, num_tokens, sample: true, ..PlannedRow::default()
//! };
//! let added = AddedRow {
//!     row,
//!     epoch: 0,
//!     token_ids: vec![10, 11, 12],
//!     num_prompt_tokens: 3,
//!     num_computed_tokens: 0,
//!     block_table: vec![7],
//!     sampling: RowSampling::default(),
//! };
//! let first = StepBatch { step: 0, added: vec![added], rows: vec![plan(3)], ..StepBatch::default() };
//! let second = StepBatch { step: 1, rows: vec![plan(1)], ..StepBatch::default() };
//! let tickets = [executor.submit(first)?, executor.submit(second)?];
//! for ticket in tickets {
//!     assert_eq!(executor.collect(ticket)?.rows[0].token_ids.len(), 1);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - A batch is checked against the rows before anything of it reaches the device: no id, slot or block out of range
//!   is ever an index there.
//! - Steps run in the order of submission; after one that failed none runs until [`Executor::reset`].
//! - A row's tokens and log-probabilities do not depend on the rows beside it, on chunks, blocks or preemptions, as
//!   far as the kernels keep to that.
//! - In the steady state nothing is allocated on the device, and only ids and what was asked for come back.
//! - Metadata lies at fixed addresses, so that a recorded decode step can be replayed; sampling is never part of a
//!   recording.

mod batch;
mod error;
mod executor;
mod graphs;
mod local;
mod logprobs_mode;
mod mask;
mod mask_channel;
mod memory;
mod output;
mod pool;
mod processor;
mod processors;
mod row;
mod runner;
mod swap;
pub mod testing;
mod worker;

pub use batch::{
    AddedRow, BlockTransfer, PlannedRow, ProcessorCall, RowId, RowSampling, StepBatch, SwapDirection,
};
pub use error::{BatchError, ExecutorError};
pub use executor::{DeviceCapacity, Executor, Ticket};
pub use graphs::GraphSizes;
pub use local::LocalExecutor;
pub use logprobs_mode::LogprobsMode;
pub use mask::{RowMask, TokenMask, TokenMasks};
pub use memory::{
    MaxModelLen, MeasuredMemory, MemoryAdvice, MemoryError, MemoryPlan, MemoryProbe, MemoryReport,
    MemoryRequest, ModelSizes, PoolSize, process_resident_bytes,
};
pub use output::{RowFault, RowOutput, StepOutput, TokenLogprobs};
pub use pool::KvPool;
pub use processor::{LogitsProcessor, RowLogits};
pub use processors::{LogitsProcessors, ProcessorError};
pub use runner::{ModelRunner, PendingStep, RunnerConfig};
pub use worker::{LoadModel, Worker, WorkerConfig};
