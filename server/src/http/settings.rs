//! What the server is told beside the engine's settings.

use std::time::Duration;

use serde_json::{Value, json};

use super::cors::CorsSettings;
use super::error::ErrorForm;
use super::limits::KeyLimits;
use super::listener::HEAD_TIMEOUT;
use super::logprobs::TokenForm;
use super::tools::ReadingSettings;

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub(crate) struct HttpSettings {
    /// Names that requests may call the model by; the first is told to clients.
    pub(crate) served_names: Vec<String>,
    /// Whether requests must bring one of these; none is asked for where there are none.
    pub(crate) api_keys: Vec<String>,
    pub(crate) error_form: ErrorForm,
    /// Whether a stream ends with its usage where `stream_options` does not say.
    pub(crate) includes_usage: bool,
    /// Writes tokens as `token_id:ID` in log-probabilities.
    pub(crate) return_tokens_as_token_ids: bool,
    pub(crate) enable_prompt_tokens_details: bool,
    /// Who speaks in the answers of chats.
    pub(crate) response_role: String,
    pub(crate) max_body_bytes: usize,
    /// A step that takes longer is taken for a hang.
    pub(crate) step_deadline: Duration,
    /// Shows metrics under vLLM's names as well.
    pub(crate) has_vllm_metrics: bool,
    /// How long a body may take to come.
    pub(crate) body_timeout: Duration,
    /// What of a stream may wait for its client to read it.
    pub(crate) max_unsent_bytes: usize,
    pub(crate) key_limits: KeyLimits,
    pub(crate) reading: ReadingSettings,
    pub(crate) cors: CorsSettings,
    /// Whether each key is a tenant: its cached blocks are its own, and policies share the device among keys.
    pub(crate) keys_are_tenants: bool,
    /// How long a client may take none of what is sent to it.
    pub(crate) write_timeout: Duration,
    /// How long requests may go on once the server was told to end.
    pub(crate) shutdown_timeout: Duration,
    /// Whether `/docs` and `/openapi.json` are there.
    pub(crate) has_docs: bool,
    /// Refuses fields without effect.
    pub(crate) is_strict: bool,
}

impl HttpSettings {
    /// A server that asks for no key.
    pub(crate) fn new(served_names: Vec<String>) -> Self {
        Self {
            served_names,
            api_keys: Vec::new(),
            error_form: ErrorForm::Nested,
            includes_usage: false,
            return_tokens_as_token_ids: false,
            enable_prompt_tokens_details: false,
            response_role: "assistant".to_owned(),
            max_body_bytes: 16 << 20,
            step_deadline: Duration::from_secs(60),
            has_vllm_metrics: true,
            body_timeout: Duration::from_secs(60),
            max_unsent_bytes: 16 << 20,
            key_limits: KeyLimits::default(),
            reading: ReadingSettings::default(),
            cors: CorsSettings::default(),
            keys_are_tenants: false,
            write_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(30),
            has_docs: true,
            is_strict: false,
        }
    }

    /// What is in force, by the names of the flags where there are any. API keys are counted, and not told.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "served_model_name": self.served_names,
            "num_api_keys": self.api_keys.len(),
            "keys_are_tenants": self.keys_are_tenants,
            "max_requests_per_key": self.key_limits.max_requests,
            "tokens_per_minute_per_key": self.key_limits.tokens_per_minute,
            "compat": (self.error_form == ErrorForm::Flat).then_some("0.7"),
            "response_role": self.response_role,
            "return_tokens_as_token_ids": self.return_tokens_as_token_ids,
            "enable_prompt_tokens_details": self.enable_prompt_tokens_details,
            "strict": self.is_strict,
            "no_vllm_metrics": !self.has_vllm_metrics,
            "disable_fastapi_docs": !self.has_docs,
            "tool_call_parser": self.reading.tool_format.map(|format| format.to_string()),
            "reasoning_parser": self.reading.reasoning_format.map(|format| format.to_string()),
            "allowed_origins": self.cors.origins,
            "allowed_methods": self.cors.methods,
            "allowed_headers": self.cors.headers,
            "allow_credentials": self.cors.allow_credentials,
            "max_body_bytes": self.max_body_bytes,
            "max_unsent_bytes": self.max_unsent_bytes,
            "head_timeout": HEAD_TIMEOUT.as_secs(),
            "body_timeout": self.body_timeout.as_secs(),
            "write_timeout": self.write_timeout.as_secs(),
            "shutdown_timeout": self.shutdown_timeout.as_secs(),
            "step_deadline": self.step_deadline.as_secs(),
        })
    }

    /// How tokens are written for a request that may say so itself.
    pub(crate) fn token_form(&self, as_ids: Option<bool>) -> TokenForm {
        if as_ids.unwrap_or(self.return_tokens_as_token_ids) { TokenForm::Id } else { TokenForm::Text }
    }
}
