//! The queue: keeps commands back until somebody waits.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::ThreadId;

use super::device::{ThreadsInStep, inner_tensor};
use super::fence::DeferredFence;
use super::line::{Line, WorkedLine};
use super::worker::{Command, Work};
use crate::{Error, Fence, Graph, PendingRead, Queue, Readback, Result, Tensor};

pub(super) struct DeferredQueue {
    line: WorkedLine,
    recording: Option<Vec<Work>>,
    threads_in_step: Arc<ThreadsInStep>,
    in_step: Option<ThreadId>,
}

impl DeferredQueue {
    pub(super) fn new(line: WorkedLine, threads_in_step: Arc<ThreadsInStep>) -> Self {
        Self { line, recording: None, threads_in_step, in_step: None }
    }

    /// Queues work, or records it.
    pub(super) fn enqueue(&mut self, work: Work) {
        match &mut self.recording {
            Some(recording) => recording.push(work),
            None => {
                self.line.push(Command::Work(work));
            }
        }
    }

    fn check_not_in_step(&self, operation: &'static str) -> Result<()> {
        let capturable = self.in_step.is_some() || self.recording.is_some();
        if capturable { Err(Error::NotInStep { operation }) } else { Ok(()) }
    }
}

impl Queue for DeferredQueue {
    fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        let (dst, bytes) = (inner_tensor(dst), bytes.to_vec());
        self.enqueue(Work::copy(move |ctx| ctx.queue().write(&dst, &bytes)));
        Ok(())
    }

    fn read(&mut self, src: &Tensor) -> Result<Readback> {
        self.check_not_in_step("read back")?;
        let (reply, answer) = channel();
        self.line.push(Command::Read { src: inner_tensor(src), reply });
        Ok(Readback::new(Box::new(DeferredRead { line: self.line.clone(), answer })))
    }

    fn copy_rows(&mut self, tensor: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
        let (tensor, pairs) = (inner_tensor(tensor), pairs.to_vec());
        self.enqueue(Work::copy(move |ctx| ctx.queue().copy_rows(&tensor, &pairs)));
        Ok(())
    }

    fn set_in_step(&mut self, in_step: bool) {
        if let Some(thread) = self.in_step.take() {
            self.threads_in_step.leave(thread);
        }
        self.in_step = in_step.then(|| self.threads_in_step.enter());
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Option<Box<dyn Graph>>> {
        let graph = |recorded| Box::new(DeferredGraph { recorded: Arc::new(recorded) }) as Box<dyn Graph>;
        Ok(self.recording.take().map(graph))
    }

    fn launch(&mut self, graph: &dyn Graph) -> Result<()> {
        let graph: &dyn Any = graph;
        let graph: &DeferredGraph = graph.downcast_ref().expect("a graph that the deferred device recorded");
        self.enqueue(Work::replay(graph.recorded.clone()));
        Ok(())
    }

    fn fence(&mut self) -> Result<Arc<dyn Fence>> {
        self.check_not_in_step("set a fence")?;
        Ok(DeferredFence::set(&self.line))
    }

    fn wait_for(&mut self, fence: &dyn Fence) -> Result<()> {
        self.check_not_in_step("wait for a fence")?;
        self.line.push(Command::WaitFor(DeferredFence::of(fence)));
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        self.check_not_in_step("synchronize")?;
        let (reply, answer) = channel();
        self.line.push(Command::Synchronize { reply });
        self.line.flush();
        answer.recv().unwrap_or_else(|_| Err(self.line.lost()))
    }
}

impl Drop for DeferredQueue {
    fn drop(&mut self) {
        self.set_in_step(false);
    }
}

struct DeferredGraph {
    recorded: Arc<Vec<Work>>,
}

/// What a recording is said to hold, so that budgets for them can be tested.
pub const RECORDING_BYTES: usize = 1 << 10;

impl Graph for DeferredGraph {
    fn num_bytes(&self) -> usize {
        RECORDING_BYTES
    }
}

struct DeferredRead {
    line: Arc<Line>,
    answer: Receiver<Result<Vec<u8>>>,
}

impl PendingRead for DeferredRead {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        self.line.flush();
        self.answer.recv().unwrap_or_else(|_| Err(self.line.lost()))
    }
}
