//! What the server is told beside the engine's settings.

use std::time::Duration;

use super::cors::CorsSettings;
use super::error::ErrorForm;
use super::limits::KeyLimits;
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
            has_docs: true,
            is_strict: false,
        }
    }

    /// How tokens are written for a request that may say so itself.
    pub(crate) fn token_form(&self, as_ids: Option<bool>) -> TokenForm {
        if as_ids.unwrap_or(self.return_tokens_as_token_ids) { TokenForm::Id } else { TokenForm::Text }
    }
}
