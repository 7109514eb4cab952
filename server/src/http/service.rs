//! What all routes share: the engine, the settings, and whether new work is taken.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use quire_engine::{EngineClient, Prompt, Request, RequestStream};

use super::body::Body;
use super::error::ApiError;
use super::lifecycle::{Lifecycle, OpenRequest};
use super::settings::HttpSettings;
use super::watchdog::Watchdog;

/// The state behind the routes.
pub(crate) struct Service {
    pub(crate) engine: Arc<dyn EngineClient>,
    pub(crate) settings: HttpSettings,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) started_s: u64,
    pub(crate) watchdog: Watchdog,
    /// Fields without effect that were warned of already.
    warned: Mutex<BTreeSet<String>>,
}

/// Fields without effect that are remembered: a client may make up any number of names.
const MAX_WARNED: usize = 256;

/// Requests that the engine has taken, in the order of their prompts.
pub(crate) struct Submitted {
    pub(crate) requests: Vec<SubmittedRequest>,
    /// While it is there, the server does not end.
    pub(crate) open: OpenRequest,
}

/// One of them.
pub(crate) struct SubmittedRequest {
    pub(crate) stream: RequestStream,
    pub(crate) num_prompt_tokens: u64,
}

impl Service {
    pub(crate) fn new(engine: Arc<dyn EngineClient>, settings: HttpSettings) -> Self {
        let step_deadline = settings.step_deadline;
        Self {
            engine,
            settings,
            lifecycle: Lifecycle::default(),
            started_s: unix_time_s(),
            watchdog: Watchdog::new(step_deadline),
            warned: Mutex::default(),
        }
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
    pub(crate) fn pass_over(&self, body: &Body, headers: &HeaderMap) -> Result<(), ApiError> {
        let is_strict =
            self.settings.is_strict || headers.get("x-quire-strict").is_some_and(|value| value == "1");
        for field in body.rest() {
            if is_strict {
                return Err(ApiError::bad_field(
                    field,
                    format!("{field} has no effect, and a strict server was asked for"),
                ));
            }
            let mut warned = self.warned.lock();
            if warned.len() < MAX_WARNED && warned.insert(field.to_owned()) {
                tracing::warn!(target: "quire::server", "the field {field:?} of requests has no effect; said once");
            }
        }
        Ok(())
    }

    /// Checks all requests, then queues them: one that is wrong leaves nothing behind. `max_tokens` is what the client
    /// wrote itself, if it did.
    pub(crate) async fn submit(
        &self,
        requests: Vec<Request>,
        max_tokens: Option<u64>,
    ) -> Result<Submitted, ApiError> {
        let open = self.lifecycle.open()?;
        let mut checked = Vec::with_capacity(requests.len());
        for request in requests {
            let request = self.engine.check(request).await?;
            self.check_context(num_tokens(&request.prompt), max_tokens)?;
            checked.push(request);
        }
        let mut requests = Vec::with_capacity(checked.len());
        for request in checked {
            let num_prompt_tokens = num_tokens(&request.prompt);
            let stream = self.engine.submit(request).await?;
            requests.push(SubmittedRequest { stream, num_prompt_tokens });
        }
        Ok(Submitted { requests, open })
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

fn num_tokens(prompt: &Prompt) -> u64 {
    match prompt {
        Prompt::TokenIds(token_ids) => token_ids.len() as u64,
        Prompt::Text(_) | Prompt::Chat(_) => 0,
    }
}

/// Seconds since 1970, as `created` has them.
pub(crate) fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
