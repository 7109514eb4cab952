//! A device that computes nothing, in the time that a real one would take.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use quire_executor::{
    DeviceCapacity, Executor, ExecutorError, PlannedRow, RowOutput, StepBatch, StepOutput, Ticket, TokenMasks,
};
use quire_models::testing::TinyTokenizer;

/// Each step takes as long as the one before; each token is a letter.
pub(crate) struct PacedExecutor {
    capacity: DeviceCapacity,
    step_time: Duration,
    /// When the last step that was submitted will have been computed.
    ends: Instant,
    open: VecDeque<(StepOutput, Instant)>,
}

impl PacedExecutor {
    pub(crate) fn new(capacity: DeviceCapacity, step_time: Duration) -> Self {
        Self { capacity, step_time, ends: Instant::now(), open: VecDeque::new() }
    }

    fn output(&self, row: &PlannedRow) -> RowOutput {
        let token_ids = if row.sample { vec![TinyTokenizer::byte(b'a')] } else { Vec::new() };
        RowOutput { row: row.row, epoch: row.epoch, token_ids, ..RowOutput::default() }
    }
}

impl Executor for PacedExecutor {
    fn capacity(&self) -> &DeviceCapacity {
        &self.capacity
    }

    fn submit(&mut self, batch: StepBatch) -> Result<Ticket, ExecutorError> {
        self.ends = self.ends.max(Instant::now()) + self.step_time;
        let rows = batch.rows.iter().map(|row| self.output(row)).collect();
        let device_time_us = self.step_time.as_micros() as u64;
        let output = StepOutput { step: batch.step, rows, device_time_us, ..StepOutput::default() };
        self.open.push_back((output, self.ends));
        Ok(Ticket { step: batch.step })
    }

    fn provide_masks(&mut self, _: &Ticket, _: TokenMasks) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let given = ticket.step;
        let (output, ends) =
            self.open.pop_front().ok_or(ExecutorError::OutOfOrder { given, expected: None })?;
        thread::sleep(ends.saturating_duration_since(Instant::now()));
        Ok(output)
    }

    fn reset(&mut self) -> Result<(), ExecutorError> {
        self.open.clear();
        Ok(())
    }
}
