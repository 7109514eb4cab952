//! The commands between the host and the thread that works them off.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::worker::{Command, Worker};
use crate::{Device, Error, Result};

/// Commands that wait; readbacks and fences share it with their queue, since waiting flushes.
pub(super) struct Line {
    waiting: Mutex<Waiting>,
    batches: Sender<Vec<Command>>,
    max_queued: usize,
    device_name: String,
}

#[derive(Default)]
struct Waiting {
    commands: Vec<Command>,
    /// How many were sent before them.
    num_sent: u64,
}

impl Line {
    /// Adds a command and returns its place.
    pub(super) fn push(&self, command: Command) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.commands.push(command);
        let place = waiting.num_sent + waiting.commands.len() as u64;
        if waiting.commands.len() >= self.max_queued {
            self.send(&mut waiting, place);
        }
        place
    }

    /// Lets the thread work off all commands.
    pub(super) fn flush(&self) {
        self.flush_to(u64::MAX);
    }

    /// Lets the thread work off the commands up to a place, and none behind it.
    pub(super) fn flush_to(&self, place: u64) {
        self.send(&mut self.waiting.lock(), place);
    }

    /// The lock is held meanwhile, so that batches keep their order. A thread that is gone takes the commands'
    /// reply channels with it: that is how those who wait learn of it.
    fn send(&self, waiting: &mut Waiting, place: u64) {
        let num_due = place.saturating_sub(waiting.num_sent).min(waiting.commands.len() as u64);
        let batch: Vec<Command> = waiting.commands.drain(..num_due as usize).collect();
        waiting.num_sent += num_due;
        let _ = self.batches.send(batch);
    }

    pub(super) fn lost(&self) -> Error {
        Error::DeviceLost { device: self.device_name.clone(), reason: "its thread has ended".to_owned() }
    }
}

/// A line with its thread, which ends when this is dropped.
pub(super) struct WorkedLine {
    line: Arc<Line>,
    worker: Option<JoinHandle<()>>,
}

impl WorkedLine {
    pub(super) fn start(inner: Arc<dyn Device>, max_queued: usize) -> Result<Self> {
        let (batches, receiver) = channel();
        let device_name = inner.info().name.clone();
        let line = Line { waiting: Mutex::default(), batches, max_queued, device_name };
        let worker = thread::Builder::new()
            .name("quire-deferred".to_owned())
            .spawn(move || Worker::new(inner).run(&receiver))
            .map_err(|e| Error::DeviceLost { device: line.device_name.clone(), reason: e.to_string() })?;
        Ok(Self { line: Arc::new(line), worker: Some(worker) })
    }
}

impl std::ops::Deref for WorkedLine {
    type Target = Arc<Line>;

    fn deref(&self) -> &Arc<Line> {
        &self.line
    }
}

impl Drop for WorkedLine {
    /// What was enqueued is still executed, as on any device.
    fn drop(&mut self) {
        self.line.push(Command::Stop);
        self.line.flush();
        if let Some(worker) = self.worker.take() {
            // Its panics are caught where they happen; there is no result to lose.
            let _ = worker.join();
        }
    }
}
