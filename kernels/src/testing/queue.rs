//! The queue: keeps commands back until somebody waits.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle, ThreadId};

use parking_lot::Mutex;

use super::device::{ThreadsInStep, inner_tensor};
use super::worker::{Command, Work, Worker};
use crate::{Device, Error, Graph, PendingRead, Queue, Readback, Result, Tensor};

pub(super) struct DeferredQueue {
    line: Arc<Line>,
    worker: Option<JoinHandle<()>>,
    recording: Option<Vec<Work>>,
    threads_in_step: Arc<ThreadsInStep>,
    in_step: Option<ThreadId>,
}

/// The commands between the host and the thread; readbacks share it with their queue, since waiting flushes.
struct Line {
    waiting: Mutex<Vec<Command>>,
    batches: Sender<Vec<Command>>,
    max_queued: usize,
    device_name: String,
}

impl Line {
    fn push(&self, command: Command) {
        let mut waiting = self.waiting.lock();
        waiting.push(command);
        if waiting.len() >= self.max_queued {
            self.send(&mut waiting);
        }
    }

    fn flush(&self) {
        self.send(&mut self.waiting.lock());
    }

    /// The lock is held meanwhile, so that batches keep their order. A thread that is gone takes the commands'
    /// reply channels with it: that is how those who wait learn of it.
    fn send(&self, waiting: &mut Vec<Command>) {
        let _ = self.batches.send(std::mem::take(waiting));
    }

    fn lost(&self) -> Error {
        Error::DeviceLost { device: self.device_name.clone(), reason: "its thread has ended".to_owned() }
    }
}

impl DeferredQueue {
    pub(super) fn new(
        inner: Arc<dyn Device>,
        threads_in_step: Arc<ThreadsInStep>,
        max_queued: usize,
    ) -> Result<Self> {
        let (batches, receiver) = channel();
        let device_name = inner.info().name.clone();
        let line = Line { waiting: Mutex::default(), batches, max_queued, device_name };
        let worker = thread::Builder::new()
            .name("quire-deferred".to_owned())
            .spawn(move || Worker::new(inner).run(&receiver))
            .map_err(|e| Error::DeviceLost { device: line.device_name.clone(), reason: e.to_string() })?;
        Ok(Self {
            line: Arc::new(line),
            worker: Some(worker),
            recording: None,
            threads_in_step,
            in_step: None,
        })
    }

    /// Queues work, or records it.
    pub(super) fn enqueue(&mut self, work: Work) {
        match &mut self.recording {
            Some(recording) => recording.push(work),
            None => self.line.push(Command::Work(work)),
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

    fn synchronize(&mut self) -> Result<()> {
        self.check_not_in_step("synchronize")?;
        let (reply, answer) = channel();
        self.line.push(Command::Fence { reply });
        self.line.flush();
        answer.recv().unwrap_or_else(|_| Err(self.line.lost()))
    }
}

impl Drop for DeferredQueue {
    /// What was enqueued is still executed, as on any device.
    fn drop(&mut self) {
        self.set_in_step(false);
        self.line.push(Command::Stop);
        self.line.flush();
        if let Some(worker) = self.worker.take() {
            // Its panics are caught where they happen; there is no result to lose.
            let _ = worker.join();
        }
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
