//! An executor over one device of this process.

use std::collections::VecDeque;
use std::time::Instant;

use crate::memory::MemoryReport;
use crate::{
    DeviceCapacity, Executor, ExecutorError, StepBatch, StepOutput, Ticket, TokenMasks, Worker, WorkerConfig,
};

/// Two steps: the next one is planned and enqueued while one runs.
const MAX_IN_FLIGHT: usize = 2;

/// One [`Worker`] behind the [`Executor`] trait.
pub struct LocalExecutor {
    worker: Worker,
    capacity: DeviceCapacity,
    open: VecDeque<OpenStep>,
    failed: bool,
    /// When the device had finished the last collected step.
    free_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct OpenStep {
    step: u64,
    /// Its gated rows wait.
    needs_masks: bool,
}

impl LocalExecutor {
    /// Starts the worker: loads the model and allocates the pool.
    ///
    /// # Errors
    ///
    /// As [`Worker::start`].
    pub fn start(config: WorkerConfig) -> Result<Self, ExecutorError> {
        let worker = Worker::start(config)?;
        let capacity = DeviceCapacity { max_in_flight: MAX_IN_FLIGHT, ..worker.capacity().clone() };
        Ok(Self { worker, capacity, open: VecDeque::new(), failed: false, free_since: None })
    }

    /// What was planned and what was measured.
    pub fn report(&self) -> &MemoryReport {
        self.worker.report()
    }
}

impl Executor for LocalExecutor {
    fn capacity(&self) -> &DeviceCapacity {
        &self.capacity
    }

    fn memory(&self) -> Option<&MemoryReport> {
        Some(self.report())
    }

    fn submit(&mut self, batch: StepBatch) -> Result<Ticket, ExecutorError> {
        let (step, open, max_in_flight) = (batch.step, self.open.len(), MAX_IN_FLIGHT);
        if self.failed {
            return Err(ExecutorError::Dropped { step });
        }
        if open >= max_in_flight {
            return Err(ExecutorError::TooManyInFlight { open, max_in_flight });
        }
        let needs_masks = batch.is_gated();
        self.worker.submit(batch)?;
        self.open.push_back(OpenStep { step, needs_masks });
        Ok(Ticket { step })
    }

    fn provide_masks(&mut self, ticket: &Ticket, masks: TokenMasks) -> Result<(), ExecutorError> {
        let step = ticket.step;
        let waiting = self.open.iter_mut().find(|open| open.needs_masks);
        match waiting {
            Some(open) if open.step == step => {
                open.needs_masks = false;
                self.worker.provide_masks(step, masks)
            }
            waiting => Err(ExecutorError::NotGated { step, expected: waiting.map(|open| open.step) }),
        }
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let expected = self.open.front().map(|open| open.step);
        if expected != Some(ticket.step) {
            return Err(ExecutorError::OutOfOrder { given: ticket.step, expected });
        }
        if self.open.front().is_some_and(|open| open.needs_masks) && !self.failed {
            return Err(ExecutorError::NoMasks { step: ticket.step });
        }
        self.open.pop_front();
        let enqueued = self.worker.next();
        if self.failed {
            return Err(ExecutorError::Dropped { step: ticket.step });
        }
        let outcome = enqueued.and_then(|step| step.wait(self.free_since));
        self.failed = outcome.is_err();
        self.free_since = Some(Instant::now());
        outcome
    }

    fn reset(&mut self) -> Result<(), ExecutorError> {
        self.open.clear();
        self.worker.reset()?;
        self.failed = false;
        self.free_since = None;
        Ok(())
    }
}
