//! Server-sent events made of the events of requests.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_core::Stream;
use parking_lot::Mutex;
use quire_engine::{RequestEvent, RequestHandle};
use tokio::task::AbortHandle;

use super::connection::Connection;
use super::error::{ApiError, ErrorForm};
use super::event_buffer::Events;
use super::lifecycle;
use super::service::{OpenAnswer, PreparedAnswer, Service};
use super::settings::HttpSettings;
use super::stream_writer::Listener;
use super::wire::Sent;

/// Turns what the engine says of requests into events on the wire.
pub(crate) trait EventWriter: Send + 'static {
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

/// Starts requests, and answers with a stream until all have ended. Dropping it, as a lost connection does, gives them up.
///
/// # Errors
///
/// What the engine has come to.
pub(crate) fn response(
    service: &Service,
    prepared: PreparedAnswer,
    writer: impl EventWriter,
) -> Result<Response, ApiError> {
    let PreparedAnswer { requests, open } = prepared;
    let (deadline, given_up) = (open.deadline(), Box::pin(open.given_up()));
    let answer = Arc::new(StreamedAnswer::new(writer, open, requests.len(), &service.settings));
    let sinks = service.stream_writer.sinks(Arc::clone(&answer) as _);
    // Where one cannot be started, the others are given up with the body.
    let expiry = deadline.map(|deadline| tokio::spawn(expire(Arc::clone(&answer), deadline)).abort_handle());
    let body = AnswerBody { answer: Arc::clone(&answer), expiry, given_up };
    for (place, (request, sink)) in requests.into_iter().zip(sinks).enumerate() {
        answer.hold(place, request.start_into(sink)?);
    }
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect a body before they pass it on are told not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Ends an answer at its deadline, whether anybody takes what it says or not.
async fn expire<W: EventWriter>(answer: Arc<StreamedAnswer<W>>, deadline: Instant) {
    tokio::time::sleep_until(deadline.into()).await;
    answer.change(|state| {
        if let Some(error) = state.open.as_ref().map(OpenAnswer::too_late) {
            state.fail(&error);
        }
    });
}

fn reads_too_slowly(max_unsent_bytes: usize) -> ApiError {
    let message = format!("the client has left more than {max_unsent_bytes} bytes of the answer unread");
    ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
}

/// An answer that is streamed: the thread that writes it, and the connection that it goes out over, share it.
struct StreamedAnswer<W>(Mutex<State<W>>);

struct State<W> {
    writer: W,
    error_form: ErrorForm,
    /// More does not wait for a client that reads more slowly than its answer comes: it would take all memory.
    max_unsent_bytes: usize,
    /// What has not been sent.
    out: Events,
    /// When that came about, a moment for each piece of an output.
    moments: Vec<Instant>,
    requests: Vec<RequestState>,
    num_running: usize,
    /// None after the last event.
    open: Option<OpenAnswer>,
    connection: Option<Connection>,
    /// The connection's task, where it waits for something to send.
    task: Option<Waker>,
}

enum RequestState {
    /// Its handle is on its way.
    Started,
    Running(RequestHandle),
    Ended,
}

impl<W: EventWriter> StreamedAnswer<W> {
    fn new(writer: W, open: OpenAnswer, num_requests: usize, settings: &HttpSettings) -> Self {
        Self(Mutex::new(State {
            writer,
            error_form: settings.error_form,
            max_unsent_bytes: settings.max_unsent_bytes,
            out: Events::default(),
            moments: Vec::new(),
            requests: (0..num_requests).map(|_| RequestState::Started).collect(),
            num_running: num_requests,
            connection: open.connection().cloned(),
            open: Some(open),
            task: None,
        }))
    }

    /// Keeps a request, unless it has ended already; where the answer has, it is given up.
    fn hold(&self, place: usize, handle: RequestHandle) {
        match self.0.lock().requests.get_mut(place) {
            Some(slot @ RequestState::Started) => *slot = RequestState::Running(handle),
            Some(RequestState::Running(_) | RequestState::Ended) => handle.end(),
            None => drop(handle),
        }
    }

    /// Changes the state, and wakes the connection's task where it has something to do.
    fn change(&self, change: impl FnOnce(&mut State<W>)) {
        let mut state = self.0.lock();
        change(&mut state);
        let woken = if state.is_sent() { None } else { state.task.take() };
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<W: EventWriter> Listener for StreamedAnswer<W> {
    fn take(&self, place: usize, event: RequestEvent, moment: Instant) {
        self.change(|state| state.take(place, event, moment));
    }

    fn fail(&self) {
        let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "writing the answer panicked");
        self.change(|state| {
            state.out.cut();
            state.fail(&error);
        });
    }
}

impl<W: EventWriter> State<W> {
    /// Writes an event down.
    fn take(&mut self, place: usize, event: RequestEvent, moment: Instant) {
        let Some(open) = &self.open else { return };
        let num_tokens = self.writer.num_tokens(&event);
        if num_tokens > 0 {
            open.generated(num_tokens);
            self.moments.push(moment);
        }
        if event.is_end() {
            self.end_request(place);
        }
        match self.writer.write(place, event, &mut self.out) {
            Err(error) => self.fail(&error),
            Ok(()) if self.num_running == 0 => {
                self.writer.end(&mut self.out);
                self.finish();
            }
            Ok(()) if self.out.num_bytes() > self.max_unsent_bytes => {
                self.fail(&reads_too_slowly(self.max_unsent_bytes));
            }
            Ok(()) => {}
        }
    }

    fn end_request(&mut self, place: usize) {
        self.num_running -= 1;
        let before = std::mem::replace(&mut self.requests[place], RequestState::Ended);
        if let RequestState::Running(handle) = before {
            handle.end();
        }
    }

    /// Sends what was written past HTTP, if that may be. False where HTTP has to do something: the end of an answer is the
    /// end of its body.
    fn is_sent(&mut self) -> bool {
        if self.open.is_none() {
            return false;
        }
        if self.out.is_empty() {
            return true;
        }
        let Some(connection) = &self.connection else { return false };
        let sent = self.out.send(|chunk| connection.send(chunk, &self.moments));
        if sent != Sent::Not {
            self.moments.clear();
        }
        sent == Sent::All
    }

    /// An error as the last event.
    fn fail(&mut self, error: &ApiError) {
        if self.open.is_some() {
            self.out.data(&error.to_json(self.error_form));
            self.finish();
        }
    }

    /// Nothing comes after this.
    fn finish(&mut self) {
        self.out.done();
        self.close();
    }

    /// Ends the answer, and gives up what still runs.
    fn close(&mut self) {
        self.requests.clear();
        self.open = None;
    }
}

/// The body of the answer, as far as HTTP sends it.
struct AnswerBody<W: EventWriter> {
    answer: Arc<StreamedAnswer<W>>,
    /// What ends the answer at its deadline, if it has one.
    expiry: Option<AbortHandle>,
    /// Returns when the server gives it up.
    given_up: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<W: EventWriter> Stream for AnswerBody<W> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let state = &mut *this.answer.0.lock();
        if state.open.is_some() && this.given_up.as_mut().poll(cx).is_ready() {
            state.fail(&lifecycle::shutting_down());
        }
        if !state.out.is_empty() {
            if let Some(connection) = &state.connection {
                connection.hand_on(state.moments.drain(..));
            }
            return Poll::Ready(Some(Ok(state.out.take())));
        }
        if state.open.is_none() {
            state.connection.iter().for_each(Connection::end);
            return Poll::Ready(None);
        }
        state.task = Some(cx.waker().clone());
        state.connection.iter().for_each(Connection::wait);
        Poll::Pending
    }
}

impl<W: EventWriter> Drop for AnswerBody<W> {
    fn drop(&mut self) {
        self.expiry.iter().for_each(AbortHandle::abort);
        let mut state = self.answer.0.lock();
        state.close();
        state.connection.iter().for_each(Connection::end);
    }
}
