//! Server-sent events made of the events of requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_core::Stream;
use quire_engine::{RequestEvent, RequestStream};
use serde::Serialize;
use tokio::time::Sleep;

use super::error::{ApiError, ErrorForm};
use super::service::{OpenAnswer, Submitted};

/// Bytes after which a piece of the body goes out, whatever else is ready.
const PIECE_BYTES: usize = 16 << 10;

/// Turns what the engine says of requests into events on the wire.
pub(crate) trait EventWriter: Send + Unpin + 'static {
    /// Writes what came for the request at `place`.
    fn write(&mut self, place: usize, event: RequestEvent, out: &mut Events) -> Result<(), ApiError>;

    /// Tokens that an event is the first to tell of.
    fn num_tokens(&self, event: &RequestEvent) -> u64 {
        match event {
            RequestEvent::Delta(delta) => delta.token_ids.len() as u64,
            _ => 0,
        }
    }

    /// Writes what comes after the last event of the last request.
    fn end(&mut self, out: &mut Events);
}

/// Events that have not been sent.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Adds an event.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, value).expect("wire types have text keys, and a vector takes all");
        self.0.extend_from_slice(b"\n\n");
    }

    fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// What was added since the last call. The next piece is likely to be as long: it is not to grow from nothing.
    fn take(&mut self) -> Bytes {
        let next = Vec::with_capacity(self.0.len());
        Bytes::from(std::mem::replace(&mut self.0, next))
    }
}

/// A response that streams until all requests have ended. Dropping it, as a lost connection does, gives them up.
pub(crate) fn response(submitted: Submitted, writer: impl EventWriter, error_form: ErrorForm) -> Response {
    let Submitted { requests, open } = submitted;
    let streams = requests.into_iter().map(|request| Some(request.stream)).collect();
    let deadline = open.deadline().map(|deadline| Box::pin(tokio::time::sleep_until(deadline.into())));
    let events =
        EventStream { streams, writer, out: Events::default(), error_form, open: Some(open), deadline };
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect a body before they pass it on are told not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct EventStream<W> {
    streams: Vec<Option<RequestStream>>,
    writer: W,
    out: Events,
    error_form: ErrorForm,
    /// None after the last event.
    open: Option<OpenAnswer>,
    /// When the answer must have ended, if it must.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<W: EventWriter> EventStream<W> {
    /// Writes all events that are there.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), ApiError> {
        let is_late = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        if let Some(open) = self.open.as_ref().filter(|_| is_late) {
            return Err(open.too_late());
        }
        for (place, slot) in self.streams.iter_mut().enumerate() {
            while let Some(stream) = slot
                && self.out.0.len() < PIECE_BYTES
            {
                match stream.poll_next(cx) {
                    Poll::Ready(Some(event)) => {
                        let num_tokens = self.writer.num_tokens(&event);
                        if let Some(open) = self.open.as_ref().filter(|_| num_tokens > 0) {
                            open.generated(num_tokens);
                            open.handed_on(stream.moment());
                        }
                        self.writer.write(place, event, &mut self.out)?;
                    }
                    Poll::Ready(None) => *slot = None,
                    Poll::Pending => break,
                }
            }
        }
        Ok(())
    }

    /// Nothing comes after this.
    fn finish(&mut self) {
        self.out.done();
        self.streams.clear();
        self.open = None;
    }
}

impl<W: EventWriter> Stream for EventStream<W> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.open.is_none() {
            return Poll::Ready(None);
        }
        if let Err(error) = this.gather(cx) {
            this.out.data(&error.to_json(this.error_form));
            this.finish();
        } else if this.streams.iter().all(Option::is_none) {
            this.writer.end(&mut this.out);
            this.finish();
        }
        if this.out.0.is_empty() { Poll::Pending } else { Poll::Ready(Some(Ok(this.out.take()))) }
    }
}
