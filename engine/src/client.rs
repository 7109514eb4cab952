//! The engine as its users see it: a trait, so that a server runs as well on a scripted engine or on a remote one.

use std::fmt;
use std::task::{Context, Poll};
use std::time::Instant;

use async_trait::async_trait;
use quire_scheduler::record::FlightRecorder;
use tokio::sync::mpsc;

use crate::{
    EngineConfig, EngineStats, Error, Prompt, Request, RequestEvent, RequestExplanation, RequestId,
    RequestOutput, Result, SamplingParams,
};

/// Takes requests and streams their events.
#[async_trait]
pub trait EngineClient: Send + Sync {
    /// Checks and queues a request. Dropping the stream gives the request up and frees its blocks within a step.
    ///
    /// # Errors
    ///
    /// All that is wrong with the request itself; [`Error::Overloaded`]; [`Error::Stopped`]. Nothing was queued then.
    async fn submit(&self, request: Request) -> Result<RequestStream>;

    /// Checks a request as [`submit`](Self::submit) would, and queues nothing. It comes back with its prompt as
    /// tokens, so that nothing is tokenized twice.
    ///
    /// # Errors
    ///
    /// All that is wrong with the request itself.
    async fn check(&self, request: Request) -> Result<Request>;

    /// The tokens of a prompt, as a request with it would have them.
    ///
    /// # Errors
    ///
    /// What is wrong with the prompt.
    async fn tokenize(&self, prompt: Prompt) -> Result<Vec<u32>>;

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    ///
    /// [`Error::TokenId`].
    async fn detokenize(&self, token_ids: Vec<u32>) -> Result<String>;

    /// What is served.
    fn model(&self) -> &ModelInfo;

    /// Counters and gauges, as of the last step.
    fn stats(&self) -> EngineStats;

    /// The configuration in force, where the engine runs in this process.
    fn config(&self) -> Option<&EngineConfig> {
        None
    }

    /// What every output that has not ended is doing, requests in the order of their arrival.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    async fn explain_all(&self) -> Result<Vec<RequestExplanation>>;

    /// Forgets what the prefix cache holds.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    fn reset_prefix_cache(&self) -> Result<()>;

    /// Logs scheduling decisions (`quire::schedule=debug`) on the requests of that name only, or on all again.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    fn log_schedule_of(&self, id: Option<&RequestId>) -> Result<()>;

    /// What the scheduler was asked and has decided, where there is a scheduler to see.
    fn flight_recorder(&self) -> Option<FlightRecorder> {
        None
    }

    /// Whether requests can be served.
    ///
    /// # Errors
    ///
    /// What ended the engine.
    fn health(&self) -> Result<()>;

    /// A request from its beginning to its end.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit), and what the request failed at later.
    async fn generate(&self, request: Request) -> Result<RequestOutput> {
        self.submit(request).await?.finish().await
    }
}

/// The model behind a client.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The name it is served under.
    pub name: String,
    /// Where it was loaded from.
    pub path: String,
    /// Its architecture.
    pub architecture: String,
    /// Tokens of prompt and output together: the limit in force.
    pub max_model_len: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// Whether it has a chat template.
    pub has_chat_template: bool,
    /// What parameters are where a request does not give them.
    pub default_params: SamplingParams,
}

/// The events of one request, in order. Dropping it gives the request up.
pub struct RequestStream {
    events: mpsc::UnboundedReceiver<(RequestEvent, Instant)>,
    /// The moment of the last event.
    moment: Option<Instant>,
    ended: bool,
    on_drop: Option<Box<dyn FnOnce() + Send>>,
}

/// The other end of a [`RequestStream`].
#[derive(Clone, Debug)]
pub struct EventSender(mpsc::UnboundedSender<(RequestEvent, Instant)>);

impl EventSender {
    /// Hands an event on. Whoever listened may be gone; that is no error.
    pub fn send(&self, event: RequestEvent) {
        self.send_at(event, Instant::now());
    }

    /// As [`send`](Self::send), for what has come about at that moment: when a step was committed, say.
    pub fn send_at(&self, event: RequestEvent, moment: Instant) {
        let _ = self.0.send((event, moment));
    }

    /// Whether nobody listens any more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl RequestStream {
    /// A stream and what feeds it. `abort` runs if the stream is dropped before the request has ended.
    ///
    /// A request ends in one event, so the queue between the two is bounded by what the request may generate.
    pub fn channel(abort: impl FnOnce() + Send + 'static) -> (EventSender, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (EventSender(sender), Self { events, moment: None, ended: false, on_drop: Some(Box::new(abort)) })
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<RequestEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next event, on a thread that may wait; `None` after the last one.
    ///
    /// # Panics
    ///
    /// Inside an asynchronous task, which must not wait: use [`next`](Self::next).
    pub fn blocking_next(&mut self) -> Option<RequestEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// As [`next`](Self::next), for implementing a stream over it.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RequestEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.events.poll_recv(cx).map(|event| Some(self.note(event)))
    }

    /// When the last event came about: for a piece of an output, when the step was committed that it is of.
    pub fn moment(&self) -> Option<Instant> {
        self.moment
    }

    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// What the request failed at.
    pub async fn finish(mut self) -> Result<RequestOutput> {
        loop {
            match self.next().await {
                Some(RequestEvent::Delta(_) | RequestEvent::SoFar(_)) => {}
                Some(RequestEvent::Finished(output)) => return Ok(*output),
                Some(RequestEvent::Failed(error)) => return Err(error),
                None => return Err(Error::stopped("the request's stream has ended")),
            }
        }
    }

    /// Notes the end. A feeder that is gone without a last event has died: its listener must hear of it.
    fn note(&mut self, event: Option<(RequestEvent, Instant)>) -> RequestEvent {
        let (event, moment) = event.unzip();
        self.moment = moment;
        let event =
            event.unwrap_or_else(|| RequestEvent::Failed(Error::stopped("the engine's thread has ended")));
        if matches!(event, RequestEvent::Finished(_) | RequestEvent::Failed(_)) {
            self.ended = true;
            self.on_drop = None;
        }
        event
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        if let Some(abort) = self.on_drop.take() {
            abort();
        }
    }
}

impl fmt::Debug for RequestStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestStream").field("ended", &self.ended).finish_non_exhaustive()
    }
}
