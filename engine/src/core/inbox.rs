//! The way into the engine's thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use quire_kvcache::{BlockHashes, PinError, PinId};
use quire_scheduler::Explanation;
use tokio::sync::oneshot;

use super::places::{Place, Places};
use crate::explain::RequestExplanation;
use crate::frontend::Prepared;
use crate::structured::{Grammar, GrammarError};
use crate::{Error, EventSink, RequestId, RequestRoom, Result};

/// A request inside the engine. Clients' names may be equal; these never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestKey(u64);

/// What the engine's thread is told.
pub(super) enum Command {
    Submit(Box<Submission>),
    /// What became of the grammar of a request that was submitted before.
    Grammar(RequestKey, Result<Grammar, GrammarError>),
    Abort(RequestKey),
    ResetPrefixCache,
    /// Why the requests of that name do not run.
    Explain(RequestId, oneshot::Sender<Vec<Explanation>>),
    /// What all that has not ended is doing.
    ExplainAll(mpsc::Sender<Vec<RequestExplanation>>),
    /// Keeps a beginning in the prefix cache.
    Pin(Vec<u32>, BlockHashes, mpsc::Sender<Result<PinId, PinError>>),
    Unpin(PinId, mpsc::Sender<bool>),
    /// Writes the scheduling decisions on the requests of that name only, or on all again.
    LogOnly(Option<RequestId>),
    Hold(mpsc::Receiver<()>),
    Stop,
}

/// A request on its way in.
pub(super) struct Submission {
    pub(super) key: RequestKey,
    pub(super) prepared: Prepared,
    pub(super) sink: Box<dyn EventSink>,
    pub(super) place: Place,
}

/// The sending end. Whoever sends a request has a place for it, in here and in the scheduler.
#[derive(Clone)]
pub(crate) struct Inbox {
    commands: mpsc::Sender<Command>,
    places: Places,
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

/// While it is there, the engine waits.
pub(crate) struct Hold {
    _open: mpsc::Sender<()>,
}

impl Inbox {
    /// Both ends.
    pub(super) fn channel(places: Places) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        let inbox = Self { commands, places, next_key: Arc::default(), status: Status::default() };
        (inbox, receiver)
    }

    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// A name for a request about to be submitted.
    pub(crate) fn next_key(&self) -> RequestKey {
        RequestKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// A place for a request of so many sequences, to be taken before it is handed in.
    ///
    /// # Errors
    ///
    /// [`Error::Overloaded`], [`Error::Stopped`].
    pub(crate) fn reserve(&self, num_seqs: usize) -> Result<Place> {
        self.status.check()?;
        self.places.take(num_seqs)
    }

    /// How many requests of so many sequences there are places for, where there is no other.
    pub(crate) fn room(&self, num_seqs: usize) -> RequestRoom {
        self.places.room(num_seqs)
    }

    /// Queues a request. Where the engine has ended, the sink is dropped, which tells its listener.
    pub(crate) fn submit(&self, place: Place, prepared: Prepared, sink: Box<dyn EventSink>) -> RequestKey {
        let key = self.next_key();
        self.submit_as(key, place, prepared, sink);
        key
    }

    /// As [`submit`](Self::submit), under a name from [`next_key`](Self::next_key).
    pub(crate) fn submit_as(
        &self,
        key: RequestKey,
        place: Place,
        prepared: Prepared,
        sink: Box<dyn EventSink>,
    ) {
        let grammar = prepared.grammar.clone();
        let _ = self.commands.send(Command::Submit(Box::new(Submission { key, prepared, sink, place })));
        if let Some(grammar) = grammar {
            let commands = self.commands.clone();
            grammar.when_done(move |outcome| drop(commands.send(Command::Grammar(key, outcome))));
        }
    }

    /// Makes the engine wait, once it gets there, until the result is dropped: what is submitted meanwhile is seen at once,
    /// so that a batch is scheduled alike however fast it was handed in. Not to be kept for long.
    pub(crate) fn hold(&self) -> Hold {
        let (hold, held) = mpsc::channel();
        let _ = self.commands.send(Command::Hold(held));
        Hold { _open: hold }
    }

    /// Gives a request up. One that has ended already is none of the engine's business.
    pub(crate) fn abort(&self, key: RequestKey) {
        let _ = self.commands.send(Command::Abort(key));
    }

    /// Empties the prefix cache.
    pub(crate) fn reset_prefix_cache(&self) -> Result<()> {
        self.commands.send(Command::ResetPrefixCache).map_err(|_| self.stopped())
    }

    /// Asks what the requests of that name are doing.
    pub(crate) fn explain(&self, id: RequestId) -> Result<oneshot::Receiver<Vec<Explanation>>> {
        let (sender, receiver) = oneshot::channel();
        self.commands.send(Command::Explain(id, sender)).map_err(|_| self.stopped())?;
        Ok(receiver)
    }

    /// Asks what all that has not ended is doing.
    pub(crate) fn explain_all(&self) -> Result<Vec<RequestExplanation>> {
        self.ask(Command::ExplainAll)
    }

    /// Keeps the full blocks at a beginning.
    pub(crate) fn pin(&self, tokens: Vec<u32>, hashes: BlockHashes) -> Result<PinId> {
        Ok(self.ask(|answer| Command::Pin(tokens, hashes, answer))??)
    }

    /// Lets a beginning go; whether it was kept.
    pub(crate) fn unpin(&self, pin: PinId) -> Result<bool> {
        self.ask(|answer| Command::Unpin(pin, answer))
    }

    /// Waits for the answer to a question.
    fn ask<T>(&self, question: impl FnOnce(mpsc::Sender<T>) -> Command) -> Result<T> {
        let (answer, answered) = mpsc::channel();
        self.commands.send(question(answer)).map_err(|_| self.stopped())?;
        answered.recv().map_err(|_| self.stopped())
    }

    /// Chooses whose scheduling decisions are logged.
    pub(crate) fn log_only(&self, id: Option<RequestId>) -> Result<()> {
        self.commands.send(Command::LogOnly(id)).map_err(|_| self.stopped())
    }

    /// Asks the engine to end.
    pub(crate) fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Why a request got no answer.
    pub(crate) fn stopped(&self) -> Error {
        self.status.check().err().unwrap_or_else(|| Error::stopped("its thread has ended"))
    }
}
