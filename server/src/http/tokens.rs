//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use quire_engine::Prompt;
use serde_json::{Value, json};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::service::Service;
use super::{conversation, prompts};

/// The tokens that a completion, or a chat, would begin with.
pub(crate) async fn tokenize(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Json<Value>, ApiError> {
    service.model_name(body.take_text("model")?)?;
    let prompt = take_prompt(&mut body)?;
    service.pass_over(&body, &caller)?;
    let tokens = service.engine.tokenize(prompt).await?;
    let max_model_len = service.engine.model().max_model_len;
    Ok(Json(json!({ "count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens })))
}

fn take_prompt(body: &mut Body) -> Result<Prompt, ApiError> {
    match (body.peek("prompt").is_some(), body.peek("messages").is_some()) {
        (true, true) => Err(ApiError::bad_field("messages", "prompt and messages exclude each other")),
        (false, true) => Ok(Prompt::Chat(conversation::take(body)?)),
        (false, false) => Err(ApiError::bad_field("prompt", "expected prompt or messages")),
        (true, false) => {
            if body.take_bool("add_special_tokens")? == Some(false) {
                let message = "add_special_tokens = false is not built: expected true";
                return Err(ApiError::not_built("add_special_tokens", message));
            }
            let text = body.take_text("prompt")?.unwrap_or_default();
            Ok(Prompt::Text(text))
        }
    }
}

/// The text of tokens, special ones included.
pub(crate) async fn detokenize(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Json<Value>, ApiError> {
    service.model_name(body.take_text("model")?)?;
    let tokens = match body.take_value("tokens") {
        Some(Value::Array(tokens)) => tokens,
        _ => return Err(ApiError::bad_field("tokens", "tokens: expected a list of token ids")),
    };
    service.pass_over(&body, &caller)?;
    let tokens = prompts::token_ids("tokens", &tokens)?;
    let text = service.engine.detokenize(tokens).await?;
    Ok(Json(json!({ "prompt": text })))
}
