//! The way into the engine's thread.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;

use super::active::EventSink;
use crate::frontend::Prepared;
use crate::{Error, Result};

/// A request inside the engine. Clients' names may be equal; these never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestKey(u64);

/// What the engine's thread is told.
pub(super) enum Command {
    Submit(Box<Submission>),
    Abort(RequestKey),
    ResetPrefixCache,
    Stop,
}

/// A request on its way in.
pub(super) struct Submission {
    pub(super) key: RequestKey,
    pub(super) prepared: Prepared,
    pub(super) sink: Box<dyn EventSink>,
    pub(super) waiting: WaitingSlot,
}

/// The sending end. At most `max_num_waiting` requests wait, in here and in the scheduler together.
#[derive(Clone)]
pub(crate) struct Inbox {
    commands: mpsc::Sender<Command>,
    num_waiting: Arc<AtomicUsize>,
    max_num_waiting: usize,
    next_key: Arc<AtomicU64>,
    status: Status,
}

/// Whether the engine's thread serves, and else why not.
#[derive(Clone, Default)]
pub(crate) struct Status(Arc<Mutex<Option<Error>>>);

impl Status {
    /// Notes why the engine has ended. The first reason counts.
    pub(crate) fn stop(&self, error: Error) {
        self.0.lock().get_or_insert(error);
    }

    /// # Errors
    ///
    /// What ended the engine.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.lock().clone().map_or(Ok(()), Err)
    }
}

/// A place among the requests that wait, given back when dropped.
pub(super) struct WaitingSlot(Arc<AtomicUsize>);

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Inbox {
    /// Both ends.
    pub(super) fn channel(max_num_waiting: usize) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        let num_waiting = Arc::new(AtomicUsize::new(0));
        let inbox = Self {
            commands,
            num_waiting,
            max_num_waiting,
            next_key: Arc::default(),
            status: Status::default(),
        };
        (inbox, receiver)
    }

    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// A name for a request about to be submitted.
    pub(crate) fn next_key(&self) -> RequestKey {
        RequestKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues a request.
    ///
    /// # Errors
    ///
    /// [`Error::Overloaded`], [`Error::Stopped`]. The request is lost then.
    pub(crate) fn submit(&self, key: RequestKey, prepared: Prepared, sink: Box<dyn EventSink>) -> Result<()> {
        let waiting = self.take_slot()?;
        let submission = Box::new(Submission { key, prepared, sink, waiting });
        self.commands.send(Command::Submit(submission)).map_err(|_| self.stopped())
    }

    /// Whether a request would be taken now.
    pub(crate) fn has_room(&self) -> bool {
        self.num_waiting.load(Ordering::Acquire) < self.max_num_waiting
    }

    /// Gives a request up. One that has ended already is none of the engine's business.
    pub(crate) fn abort(&self, key: RequestKey) {
        let _ = self.commands.send(Command::Abort(key));
    }

    /// Empties the prefix cache.
    pub(crate) fn reset_prefix_cache(&self) -> Result<()> {
        self.commands.send(Command::ResetPrefixCache).map_err(|_| self.stopped())
    }

    /// Asks the engine to end.
    pub(crate) fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    fn take_slot(&self) -> Result<WaitingSlot> {
        let max = self.max_num_waiting;
        let taken = self.num_waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
            (waiting < max).then_some(waiting + 1)
        });
        match taken {
            Ok(_) => Ok(WaitingSlot(Arc::clone(&self.num_waiting))),
            Err(num_waiting) => Err(Error::Overloaded { num_waiting, max_num_waiting: max }),
        }
    }

    fn stopped(&self) -> Error {
        self.status.check().err().unwrap_or_else(|| Error::stopped("its thread has ended"))
    }
}
