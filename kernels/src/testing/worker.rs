//! The thread that works a queue off.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use super::fence::{DeferredFence, Signal};
use crate::{Device, Error, Fence, Result, StepCtx, Tensor};

/// Scratch of the inner operations, which the caller's context knows nothing of.
const SCRATCH_BYTES: usize = 64 << 20;

/// What a queue does, in order. The tensors in it are those of the inner device.
pub(super) enum Command {
    Work(Work),
    Read { src: Tensor, reply: Sender<Result<Vec<u8>>> },
    Signal(Signal),
    WaitFor(DeferredFence),
    Synchronize { reply: Sender<Result<()>> },
    Stop,
}

/// Work that can be done again.
pub(super) struct Work {
    run: Box<Run>,
    takes_scratch: bool,
}

type Run = dyn Fn(&mut StepCtx) -> Result<()> + Send + Sync;

impl Work {
    /// A copy, which needs no scratch.
    pub(super) fn copy(run: impl Fn(&mut StepCtx) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { run: Box::new(run), takes_scratch: false }
    }

    /// An operation of the inner backend.
    pub(super) fn operation(run: impl Fn(&mut StepCtx) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { run: Box::new(run), takes_scratch: true }
    }

    /// All of `recorded`, one after the other.
    pub(super) fn replay(recorded: Arc<Vec<Work>>) -> Self {
        Self::operation(move |ctx| recorded.iter().try_for_each(|work| (work.run)(ctx)))
    }
}

pub(super) struct Worker {
    device: Arc<dyn Device>,
    ctx: Option<StepCtx>,
    has_scratch: bool,
    /// What went wrong first: from then on nothing is done, and everyone who waits is told.
    failure: Option<Error>,
}

impl Worker {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, ctx: None, has_scratch: false, failure: None }
    }

    /// Works until it is told to stop or nobody is left who could.
    pub(super) fn run(mut self, batches: &Receiver<Vec<Command>>) {
        while let Ok(batch) = batches.recv() {
            for command in batch {
                match command {
                    Command::Work(work) => {
                        // The outcome is kept in `failure`, for those who wait.
                        let _ = self.guarded(work.takes_scratch, |ctx| (work.run)(ctx));
                    }
                    // Whoever dropped the receiver does not want the answer.
                    Command::Read { src, reply } => {
                        let _ = reply.send(self.guarded(false, |ctx| ctx.read(&src)?.wait()));
                    }
                    Command::Synchronize { reply } => {
                        let _ = reply.send(self.guarded(false, StepCtx::synchronize));
                    }
                    Command::Signal(signal) => {
                        signal.give(self.guarded(false, StepCtx::synchronize));
                    }
                    Command::WaitFor(fence) => {
                        let _ = self.guarded(false, |_| fence.wait());
                    }
                    Command::Stop => return,
                }
            }
        }
    }

    fn guarded<R>(&mut self, takes_scratch: bool, f: impl FnOnce(&mut StepCtx) -> Result<R>) -> Result<R> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let device = self.device.info().name.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| f(self.ctx(takes_scratch)?)));
        let result = outcome
            .unwrap_or_else(|panic| Err(Error::DeviceLost { device, reason: panic_message(panic.as_ref()) }));
        if let Err(error) = &result {
            self.failure = Some(error.clone());
        }
        result
    }

    /// The inner context; it gets its scratch when the first operation comes, since most queues only copy.
    fn ctx(&mut self, takes_scratch: bool) -> Result<&mut StepCtx> {
        if self.ctx.is_none() || (takes_scratch && !self.has_scratch) {
            if let Some(old) = &mut self.ctx {
                old.synchronize()?;
            }
            let scratch_bytes = if takes_scratch { SCRATCH_BYTES } else { 0 };
            self.ctx = Some(StepCtx::new(self.device.as_ref(), scratch_bytes)?);
            self.has_scratch = takes_scratch;
        }
        Ok(self.ctx.as_mut().expect("it was made above"))
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("an operation panicked: {}", text.unwrap_or("without a message"))
}
