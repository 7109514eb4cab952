//! One device on a thread of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use quire_kernels::{Kernels, KvScales};
use quire_models::Model;

use crate::mask_channel::{MaskReceiver, MaskSender, mask_channel};
use crate::memory::{MeasuredMemory, MemoryPlan, MemoryProbe, MemoryReport};
use crate::runner::PendingStep;
use crate::swap::SwapSpace;
use crate::{DeviceCapacity, ExecutorError, KvPool, LogitsProcessors, ModelRunner, StepBatch, TokenMasks};

/// Reads the weights, on the worker's thread.
pub type LoadModel = Box<dyn FnOnce(&Kernels) -> quire_models::Result<Box<dyn Model>> + Send>;

/// What a worker is started with.
pub struct WorkerConfig {
    /// The backend.
    pub kernels: Kernels,
    /// Its memory.
    pub plan: MemoryPlan,
    /// What the elements of an 8-bit cache are multiplied with, for each layer; empty where they stand for themselves.
    pub kv_scales: Vec<KvScales>,
    /// What rows may have their logits edited by.
    pub processors: LogitsProcessors,
    /// Reads bytes in use, for the report.
    pub probe: MemoryProbe,
    /// Reads the weights.
    pub load: LoadModel,
}

/// A thread that owns a device: its weights, its KV pool and its [`ModelRunner`].
///
/// Steps are run in the order they come. After a failed step every later one is dropped, until
/// [`reset`](Self::reset). Dropping the worker ends its thread, after the steps that it was given.
pub struct Worker {
    /// `None` only while it is dropped.
    commands: Option<Sender<Command>>,
    /// The same; its end wakes a step that waits.
    masks: Option<MaskSender>,
    results: Receiver<Result<PendingStep, ExecutorError>>,
    thread: Option<JoinHandle<()>>,
    report: MemoryReport,
    capacity: DeviceCapacity,
}

enum Command {
    Run(StepBatch),
    Reset(Sender<Result<(), ExecutorError>>),
}

impl Worker {
    /// Starts the thread, loads the model, allocates the pool, and waits for that.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Load`] with what is wrong with the model, [`ExecutorError::Kernels`] with what the device
    /// lacks, [`ExecutorError::Stopped`] where loading panicked.
    pub fn start(config: WorkerConfig) -> Result<Self, ExecutorError> {
        let (commands, inbox) = channel();
        let (outbox, results) = channel();
        let (started, start) = channel();
        let (masks, mask_inbox) = mask_channel();
        let spawned = std::thread::Builder::new().name("quire-worker".to_owned()).spawn(move || {
            let device = catch_unwind(AssertUnwindSafe(|| WorkerThread::start(config, mask_inbox)));
            match device.unwrap_or_else(|panic| Err(stopped(panic.as_ref()))) {
                Ok((thread, report, capacity)) => {
                    // Whoever started it waits for this.
                    if started.send(Ok((report, capacity))).is_ok() {
                        thread.run(&inbox, &outbox);
                    }
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let thread = spawned.map_err(|error| ExecutorError::Stopped { reason: error.to_string() })?;
        let started = start.recv().unwrap_or_else(|_| Err(gone()));
        match started {
            Ok((report, capacity)) => {
                report.log();
                let (commands, masks) = (Some(commands), Some(masks));
                Ok(Self { commands, masks, results, thread: Some(thread), report, capacity })
            }
            Err(error) => {
                // What it held of the device is free again when this returns.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// What the device holds and allows, with one step open at a time.
    pub fn capacity(&self) -> &DeviceCapacity {
        &self.capacity
    }

    /// What was planned and what was measured.
    pub fn report(&self) -> &MemoryReport {
        &self.report
    }

    /// Hands in a step.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Stopped`].
    pub fn submit(&self, batch: StepBatch) -> Result<(), ExecutorError> {
        self.send(Command::Run(batch))
    }

    /// What the gated rows of a step may choose. Steps come in their order.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Stopped`].
    pub fn provide_masks(&self, step: u64, masks: TokenMasks) -> Result<(), ExecutorError> {
        self.mask_sender().send(step, masks)
    }

    /// Waits until the oldest step that was not taken yet is enqueued.
    ///
    /// # Errors
    ///
    /// What the step failed at, [`ExecutorError::Dropped`] after an earlier failure, [`ExecutorError::Stopped`].
    pub fn next(&self) -> Result<PendingStep, ExecutorError> {
        self.results.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Throws away all rows and results, and starts over with the weights and the pool there are.
    ///
    /// # Errors
    ///
    /// Where the device does not come back.
    pub fn reset(&self) -> Result<(), ExecutorError> {
        let (done, outcome) = channel();
        // A step may wait for masks that nobody will make.
        self.mask_sender().give_up();
        self.send(Command::Reset(done))?;
        let outcome = outcome.recv().unwrap_or_else(|_| Err(gone()));
        while self.results.try_recv().is_ok() {}
        outcome
    }

    fn send(&self, command: Command) -> Result<(), ExecutorError> {
        let commands = self.commands.as_ref().expect("only drop takes it");
        commands.send(command).map_err(|_| gone())
    }

    fn mask_sender(&self) -> &MaskSender {
        self.masks.as_ref().expect("only drop takes it")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.commands.take());
        drop(self.masks.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been told by then; a second one here would abort the process.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct WorkerThread {
    kernels: Kernels,
    model: Arc<dyn Model>,
    pool: KvPool,
    swap_space: Option<SwapSpace>,
    plan: MemoryPlan,
    processors: LogitsProcessors,
    masks: MaskReceiver,
    /// `None` after a failure.
    runner: Option<ModelRunner>,
}

impl WorkerThread {
    fn start(
        config: WorkerConfig,
        masks: MaskReceiver,
    ) -> Result<(Self, MemoryReport, DeviceCapacity), ExecutorError> {
        let WorkerConfig { kernels, plan, kv_scales, processors, probe, load } = config;
        let before_load = probe();
        kernels.device().reserve(plan.reserved_bytes())?;
        let model: Arc<dyn Model> =
            load(&kernels).map_err(|error| ExecutorError::Load(Arc::new(error)))?.into();
        kernels.device().finish_loading();
        let after_weights = probe();
        let block_size = plan.runner.limits.block_size;
        let pool =
            KvPool::new(&kernels, &plan.kv_groups, block_size, plan.num_blocks)?.with_scales(&kv_scales);
        let loaded_weight_bytes = model.num_bytes();
        let swap_space = match plan.num_swap_blocks {
            0 => None,
            num_blocks => Some(SwapSpace::new(kernels.device().as_ref(), &pool, num_blocks)?),
        };
        let mut thread = Self { kernels, model, pool, swap_space, plan, processors, masks, runner: None };
        let capacity = thread.reset()?;
        let measured = MeasuredMemory { before_load, after_weights, after_pool: probe() };
        let report = MemoryReport { plan: thread.plan.clone(), loaded_weight_bytes, measured };
        Ok((thread, report, capacity))
    }

    fn run(mut self, inbox: &Receiver<Command>, outbox: &Sender<Result<PendingStep, ExecutorError>>) {
        while let Ok(command) = inbox.recv() {
            let heard = match command {
                Command::Run(batch) => outbox.send(self.step(batch)).is_ok(),
                Command::Reset(done) => done.send(self.reset().map(drop)).is_ok(),
            };
            if !heard {
                break;
            }
        }
        tracing::debug!(target: "quire::executor", "the worker ends");
    }

    fn step(&mut self, batch: StepBatch) -> Result<PendingStep, ExecutorError> {
        let step = batch.step;
        tracing::trace!(
            target: "quire::executor",
            step, num_rows = batch.rows.len(), num_tokens = batch.num_tokens(), "step"
        );
        let Some(runner) = &mut self.runner else { return Err(ExecutorError::Dropped { step }) };
        let masks = &self.masks;
        let run = || runner.run_gated(batch, || masks.wait_for(step));
        let outcome = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(ExecutorError::Panicked { step, message: message(panic.as_ref()) }));
        if let Err(error) = &outcome {
            tracing::error!(target: "quire::executor", step, error = error as &dyn std::error::Error, "a step failed");
            self.runner = None;
        }
        outcome
    }

    fn reset(&mut self) -> Result<DeviceCapacity, ExecutorError> {
        // The old one gives its memory back first: there is no room for two.
        self.runner = None;
        self.masks.clear();
        let (kernels, model, pool) = (self.kernels.clone(), Arc::clone(&self.model), self.pool.clone());
        let MemoryPlan { runner, scratch_bytes, .. } = self.plan.clone();
        let (swap_space, processors) = (self.swap_space.clone(), self.processors.clone());
        let make = || {
            let runner = ModelRunner::new(kernels, model, pool, runner, scratch_bytes)?;
            let mut runner = runner.with_processors(&processors);
            if let Some(space) = swap_space {
                runner = runner.with_swap_space(space)?;
            }
            runner.warm_up(WARM_UP_PATIENCE)?;
            Ok(runner)
        };
        let runner =
            catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| Err(stopped(panic.as_ref())))?;
        Ok(self.runner.insert(runner).capacity())
    }
}

/// How long requests may wait for recordings of steps that none of them has asked for.
const WARM_UP_PATIENCE: Duration = Duration::from_secs(2);

fn gone() -> ExecutorError {
    ExecutorError::Stopped { reason: "its thread has ended".to_owned() }
}

fn stopped(panic: &(dyn Any + Send)) -> ExecutorError {
    ExecutorError::Stopped { reason: message(panic) }
}

/// What a panic said, where it said it in words.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    text.or(owned).unwrap_or("a panic without words").to_owned()
}
