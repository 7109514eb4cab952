//! `POST /v1/chat/completions/render`: what a chat would be to the model. Nothing is generated.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use quire_engine::{Prompt, Request};
use serde_json::{Value, json};

use super::body::Body;
use super::caller::Caller;
use super::chat::Asked;
use super::error::ApiError;
use super::service::{Service, num_tokens};

/// Takes the body of a chat, refuses what a chat would be refused for, and answers with its prompt, as text and as tokens,
/// and the parameters that would hold.
pub(crate) async fn render(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (asked, deadline): (Asked, _) = service.read(&caller, body).await?;
    let request = Request { beam_search: asked.search.beams, ..Request::new(asked.prompt, asked.params) };
    let checked = deadline.within(service.check(request, asked.max_tokens)).await;
    let request = checked.map_err(|error| asked.names.translate(error))?;
    let count = num_tokens(&request.prompt);
    let token_ids = match request.prompt {
        Prompt::TokenIds(token_ids) => token_ids,
        other => service.engine.tokenize(other).await?,
    };
    let text = service.engine.detokenize(token_ids.clone()).await?;
    Ok(Json(json!({
        "request_id": asked.head.id,
        "model": asked.head.model,
        "prompt": text,
        "token_ids": token_ids,
        "count": count,
        "max_model_len": service.engine.model().max_model_len,
        "sampling_params": request.params,
    })))
}
