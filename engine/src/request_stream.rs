//! The events of a request, to be waited for.

use std::fmt;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::{Error, EventSink, RequestEvent, RequestHandle, RequestOutput, Result};

/// The events of one request, in order. Dropping it gives the request up.
pub struct RequestStream {
    events: Events,
    /// The moment of the last event.
    moment: Option<Instant>,
    /// None after the end.
    handle: Option<RequestHandle>,
}

/// The receiving end of an [`EventSender`].
pub(crate) type Events = mpsc::UnboundedReceiver<(RequestEvent, Instant)>;

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

impl EventSink for EventSender {
    fn send_at(&mut self, event: RequestEvent, moment: Instant) {
        Self::send_at(self, event, moment);
    }
}

impl RequestStream {
    /// A stream and what feeds it. `abort` runs if the stream is dropped before the request has ended.
    ///
    /// A request ends in one event, so the queue between the two is bounded by what the request may generate.
    pub fn channel(abort: impl FnOnce() + Send + 'static) -> (EventSender, Self) {
        let (sender, events) = Self::events();
        (sender, Self::new(events, RequestHandle::new(abort)))
    }

    /// A stream of what comes out of a channel.
    pub(crate) fn new(events: Events, handle: RequestHandle) -> Self {
        Self { events, moment: None, handle: Some(handle) }
    }

    /// A channel for a stream.
    pub(crate) fn events() -> (EventSender, Events) {
        let (sender, events) = mpsc::unbounded_channel();
        (EventSender(sender), events)
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
        self.handle.as_ref()?;
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// As [`next`](Self::next), for implementing a stream over it.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RequestEvent>> {
        if self.handle.is_none() {
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
                Some(RequestEvent::PromptLogprobs(_) | RequestEvent::Delta(_) | RequestEvent::SoFar(_)) => {}
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
        if event.is_end()
            && let Some(handle) = self.handle.take()
        {
            handle.end();
        }
        event
    }
}

impl fmt::Debug for RequestStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestStream").field("ended", &self.handle.is_none()).finish_non_exhaustive()
    }
}
