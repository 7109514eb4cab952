//! The seam between the engine and the devices.

use serde::{Deserialize, Serialize};

use crate::{ExecutorError, MemoryReport, StepBatch, StepOutput, TokenMasks};

/// Runs step batches, on one device or many.
///
/// At most [`DeviceCapacity::max_in_flight`] steps are open at a time. Results come in the order of submission.
pub trait Executor: Send {
    /// Blocks, bytes and limits: known before any request.
    fn capacity(&self) -> &DeviceCapacity;

    /// What memory was planned for and what was measured, where there is a device to plan for.
    fn memory(&self) -> Option<&MemoryReport> {
        None
    }

    /// Hands in a step. Never waits for the device.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::TooManyInFlight`], [`ExecutorError::Stopped`].
    fn submit(&mut self, batch: StepBatch) -> Result<Ticket, ExecutorError>;

    /// What the gated rows of an open step may choose, told while its forward pass runs. A step with gated rows is told
    /// once, after the gated steps before it and before it is collected; a step without is told nothing.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::NotGated`], [`ExecutorError::Stopped`]. Masks that do not fit the rows fail the step.
    fn provide_masks(&mut self, ticket: &Ticket, masks: TokenMasks) -> Result<(), ExecutorError>;

    /// Waits for the oldest open step.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::NoMasks`] where its gated rows still wait, or what the device failed at. Then every open ticket has failed: [`reset`](Self::reset) before going on.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError>;

    /// Rebuilds the device state after an error: no rows, no open steps, undefined cache contents.
    ///
    /// # Errors
    ///
    /// Where the device does not come back.
    fn reset(&mut self) -> Result<(), ExecutorError>;
}

/// A step that was submitted and not collected yet.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is not collected keeps its step open"]
pub struct Ticket {
    /// Number of the step.
    pub step: u64,
}

/// What the devices hold and allow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCapacity {
    /// Blocks of the KV pool.
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Bytes that a block takes over all layers.
    pub block_bytes: usize,
    /// Rows that state is kept for.
    pub max_num_seqs: usize,
    /// Most tokens a step computes.
    pub max_num_batched_tokens: usize,
    /// Most tokens a sequence holds.
    pub max_model_len: usize,
    /// Tokens of the vocabulary: ids are below it.
    pub vocab_size: usize,
    /// Blocks of the swap space on the host; 0 is none.
    pub num_swap_blocks: usize,
    /// How fast blocks move between device and host, one way at a time, as measured at the start; 0 without swap space.
    pub swap_bytes_per_s: u64,
    /// Steps that may be open at once; 2 lets the next one be planned while one runs.
    pub max_in_flight: usize,
}
