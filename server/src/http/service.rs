//! What all routes share: the engine, the settings, and whether new work is taken.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use futures_util::TryFutureExt;
use parking_lot::Mutex;
use quire_engine::{EngineClient, PreparedRequest, Prompt, Request, RequestStream};

use super::body_work::BodyWork;
use super::caller::Caller;
use super::connection::Connection;
use super::deadline::Deadline;
use super::error::{ApiError, shortened_name};
use super::lifecycle::{self, Lifecycle, OpenRequest};
use super::limits::{KeyGuard, KeyUse};
use super::pace::Pace;
use super::response_counts::ResponseCounts;
use super::settings::HttpSettings;
use super::stream_writer::StreamWriter;
use super::usage::Usage;
use super::watchdog::Watchdog;
use super::write_times::WriteTimes;

/// The state behind the routes.
pub(crate) struct Service {
    pub(crate) engine: Arc<dyn EngineClient>,
    pub(crate) settings: HttpSettings,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) started_s: u64,
    pub(crate) watchdog: Watchdog,
    pub(crate) pace: Pace,
    pub(crate) responses: ResponseCounts,
    pub(crate) write_times: WriteTimes,
    pub(crate) stream_writer: StreamWriter,
    pub(crate) body_work: BodyWork,
    keys: KeyUse,
    /// Fields without effect that were warned of already.
    warned: Mutex<BTreeSet<String>>,
}

/// Fields without effect that are remembered: a client may make up any number of names.
const MAX_WARNED: usize = 256;

/// Requests that were found right, in the order of their prompts, and are not queued yet.
pub(crate) struct PreparedAnswer {
    pub(crate) requests: Vec<PreparedRequest>,
    pub(crate) open: OpenAnswer,
}

/// An answer that is being given. Dropping it is its end, whatever that was.
#[derive(Debug)]
pub(crate) struct OpenAnswer {
    /// While it is there, the server does not end.
    open: OpenRequest,
    key: KeyGuard,
    deadline: Deadline,
    connection: Option<Connection>,
}

impl PreparedAnswer {
    /// What their prompts cost.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of_prompt(self.requests.iter().map(|request| request.prompt().len() as u64).sum())
    }

    /// Queues them all: an answer that comes in one piece waits for their streams.
    ///
    /// # Errors
    ///
    /// What the engine has come to.
    pub(crate) fn start(self) -> Result<(Vec<RequestStream>, OpenAnswer), ApiError> {
        let streams = self.requests.into_iter().map(PreparedRequest::start).collect::<Result<_, _>>()?;
        Ok((streams, self.open))
    }
}

impl OpenAnswer {
    /// Counts tokens that were generated against what the key may use.
    pub(crate) fn generated(&self, num_tokens: u64) {
        self.key.charge(num_tokens);
    }

    /// The connection that it goes out over.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// When the answer must have ended.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.moment()
    }

    /// What is said when it has not.
    pub(crate) fn too_late(&self) -> ApiError {
        self.deadline.too_late()
    }

    /// Returns when the server gives it up.
    pub(crate) fn given_up(&self) -> impl Future<Output = ()> + Send + use<> {
        self.open.given_up()
    }

    /// Waits for `outcome`, to the deadline or the server's end at most.
    ///
    /// # Errors
    ///
    /// Those of `outcome`; [`too_late`](Self::too_late); [`lifecycle::shutting_down`].
    pub(crate) async fn within<T, E: Into<ApiError>>(
        &self,
        outcome: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            biased;
            outcome = self.deadline.within(outcome) => outcome,
            () = self.given_up() => Err(lifecycle::shutting_down()),
        }
    }
}

impl Service {
    /// A server's, at its start.
    ///
    /// # Errors
    ///
    /// Where the system has no threads for streams and bodies.
    pub(crate) fn new(engine: Arc<dyn EngineClient>, settings: HttpSettings) -> io::Result<Self> {
        let (step_deadline, keys) = (settings.step_deadline, KeyUse::new(settings.key_limits));
        Ok(Self {
            engine,
            settings,
            lifecycle: Lifecycle::default(),
            started_s: unix_time_s(),
            watchdog: Watchdog::new(step_deadline),
            pace: Pace::default(),
            responses: ResponseCounts::default(),
            write_times: WriteTimes::default(),
            stream_writer: StreamWriter::start()?,
            body_work: BodyWork::start()?,
            keys,
            warned: Mutex::default(),
        })
    }

    /// The name that answers call the model by: the one that was asked for.
    pub(crate) fn model_name(&self, given: Option<String>) -> Result<String, ApiError> {
        let names = &self.settings.served_names;
        match given {
            None => Ok(names.first().cloned().unwrap_or_default()),
            Some(given) if names.contains(&given) => Ok(given),
            Some(given) => {
                let message =
                    format!("the model {given:?} is not served here: expected {}", names.join(" or "));
                Err(ApiError {
                    param: Some("model".to_owned()),
                    ..ApiError::new(StatusCode::NOT_FOUND, message)
                })
            }
        }
    }

    /// Deals with fields that have no effect: refused for a strict client, else warned of once.
    pub(crate) fn pass_over(&self, fields: &[&str], caller: &Caller) -> Result<(), ApiError> {
        let is_strict = self.settings.is_strict || caller.is_strict;
        for &field in fields {
            let name = shortened_name(field);
            if is_strict {
                return Err(ApiError::bad_field(
                    field,
                    format!("{name} has no effect, and a strict server was asked for"),
                ));
            }
            let mut warned = self.warned.lock();
            if warned.len() < MAX_WARNED && warned.insert(name.clone().into_owned()) {
                tracing::warn!(target: "quire::server", "the field {name:?} of requests has no effect; said once");
                if warned.len() == MAX_WARNED {
                    tracing::warn!(target: "quire::server", "no more fields without effect are told; X-Quire-Strict: 1 refuses them all");
                }
            }
        }
        Ok(())
    }

    /// Says once why a name in `X-Request-Id` was replaced.
    pub(crate) fn note_name(&self, fault: &'static str) {
        if self.warned.lock().insert(format!("X-Request-Id: {fault}")) {
            tracing::info!(target: "quire::server", "an X-Request-Id gives way to another, which the answer has: {fault}; said once");
        }
    }

    /// On whose behalf a caller's requests run.
    pub(crate) fn tenant(&self, caller: &Caller) -> Option<String> {
        self.settings.keys_are_tenants.then(|| format!("key-{}", caller.key.0))
    }

    /// Checks all requests, and queues none. `max_tokens` is what the client wrote itself, if it did. Each is made once those
    /// before it were found right.
    pub(crate) async fn prepare(
        &self,
        (caller, deadline): (&Caller, Deadline),
        requests: impl ExactSizeIterator<Item = Request> + Send,
        max_tokens: Option<u64>,
    ) -> Result<PreparedAnswer, ApiError> {
        let open = self.lifecycle.open()?;
        let key = self.keys.open(caller.key, Instant::now())?;
        let open = OpenAnswer { open, key, deadline, connection: caller.connection.clone() };
        let num_requests = requests.len();
        let mut prepared = Vec::with_capacity(num_requests);
        for request in requests {
            if prepared.is_empty() {
                self.check_room(num_requests, &request)?;
            }
            let preparing = self.engine.prepare(request);
            let request = open.within(preparing.map_err(|error| self.refusal(error))).await?;
            self.check_context(request.prompt().len() as u64, max_tokens)?;
            prepared.push(request);
        }
        open.key.charge(prepared.iter().map(|request| request.prompt().len() as u64).sum());
        Ok(PreparedAnswer { requests: prepared, open })
    }

    /// Checks a request, and queues nothing. It comes back with its prompt as tokens; `max_tokens` is what the client wrote
    /// itself, if it did.
    pub(crate) async fn check(&self, request: Request, max_tokens: Option<u64>) -> Result<Request, ApiError> {
        let request = self.engine.check(request).await?;
        self.check_context(num_tokens(&request.prompt), max_tokens)?;
        Ok(request)
    }

    /// Where there is no room, the client is told when there should be some.
    fn refusal(&self, error: quire_engine::Error) -> ApiError {
        let is_full = matches!(error, quire_engine::Error::Overloaded { .. });
        let retry_after_s = is_full.then(|| self.pace.retry_after_s());
        ApiError { retry_after_s, ..error.into() }
    }

    /// Requests that are queued at once and could never be: no time would help.
    fn check_room(&self, num_requests: usize, like: &Request) -> Result<(), ApiError> {
        let Some(room) = self.engine.room_for(like).filter(|room| room.total() < num_requests) else {
            return Ok(());
        };
        let message = format!(
            "{num_requests} prompts: expected at most {}, of which {} run (--max-num-seqs) and {} wait (--max-num-waiting)",
            room.total(),
            room.num_running,
            room.num_waiting
        );
        Err(ApiError::bad_field("prompt", message))
    }

    /// A client that asks for more than the context holds is told so; the default is cut to what fits.
    fn check_context(&self, num_prompt_tokens: u64, max_tokens: Option<u64>) -> Result<(), ApiError> {
        let context = self.engine.model().max_model_len as u64;
        let asked = max_tokens.unwrap_or(0);
        let total = num_prompt_tokens.saturating_add(asked);
        if total <= context {
            return Ok(());
        }
        let message = format!(
            "this model's maximum context length is {context} tokens, the request has {total} ({num_prompt_tokens} in the prompt, {asked} in the completion): shorten the prompt or lower max_tokens"
        );
        Err(ApiError::bad_field("max_tokens", message))
    }
}

/// Tokens of a prompt that was checked.
pub(crate) fn num_tokens(prompt: &Prompt) -> u64 {
    match prompt {
        Prompt::TokenIds(token_ids) => token_ids.len() as u64,
        Prompt::Text(_) | Prompt::BareText(_) | Prompt::Chat(_) => 0,
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_time_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Seconds since 1970, as `created` has them.
pub(crate) fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
