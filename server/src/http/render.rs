//! `POST /v1/chat/completions/render`: what a chat would be to the model. Nothing is generated.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use quire_engine::{Prompt, Request, SamplingParams};
use serde_json::{Value, json};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::service::{Service, num_tokens};
use super::tools::Reading;
use super::{common, conversation, request_id, sampling, streaming};

/// Takes the body of a chat, refuses what a chat would be refused for, and answers with its prompt, as text and as tokens,
/// and the parameters that would hold.
pub(crate) async fn render(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Json<Value>, ApiError> {
    let model = service.model_name(body.take_text("model")?)?;
    let max_tokens = sampling::asked_max_tokens(&body);
    let mut chat = conversation::take(&mut body)?;
    streaming::take(&mut body, service.settings.includes_usage)?;
    let (mut params, mut names) = sampling::of_chat(&mut body, &service.engine.model().default_params)?;
    Reading::take(&mut body, service.settings.reading, &mut chat, (&mut params, &mut names))?;
    body.take_bool("echo")?;
    let common = common::CommonFields::take(&mut body)?;
    service.pass_over(&body, &caller)?;
    let id = request_id::of("chatcmpl", &caller, common.request_id.clone());
    let request = Request { params, ..Request::new(Prompt::Chat(chat), SamplingParams::default()) };
    let checked = service.check(request, max_tokens).await;
    let request = checked.map_err(|error| names.translate(error))?;
    let count = num_tokens(&request.prompt);
    let token_ids = match request.prompt {
        Prompt::TokenIds(token_ids) => token_ids,
        other => service.engine.tokenize(other).await?,
    };
    let text = service.engine.detokenize(token_ids.clone()).await?;
    Ok(Json(json!({
        "request_id": id,
        "model": model,
        "prompt": text,
        "token_ids": token_ids,
        "count": count,
        "max_model_len": service.engine.model().max_model_len,
        "sampling_params": request.params,
    })))
}
