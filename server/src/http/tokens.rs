//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use futures_util::TryFutureExt;
use quire_engine::{Prompt, Request, SamplingParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::field_names::FieldNames;
use super::from_body::FromBody;
use super::service::Service;
use super::{conversation, prompts, sampling};

/// The tokens that a completion, or a chat, would begin with.
pub(crate) async fn tokenize(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: Body,
) -> Result<Json<Tokens>, ApiError> {
    let (asked, deadline) = service.read(&caller, body).await?;
    let Asked { prompt, params, truncation, has_strs } = asked;
    let is_chat = matches!(prompt, Prompt::Chat(_));
    let max_model_len = service.engine.model().max_model_len;
    let params = deadline.within(checked(&service, params)).await?;
    let kept = match truncation {
        Some(Truncation::Kept(kept)) => kept,
        Some(Truncation::ToContext) => max_model_len.saturating_sub(params.room_within(max_model_len)),
        None => usize::MAX,
    };
    let mut tokens = deadline.within(service.engine.tokenize(prompt)).await.map_err(|error| {
        let is_of_chat = is_chat && error.param.as_deref() == Some("prompt");
        if is_of_chat { ApiError { param: Some("messages".to_owned()), ..error } } else { error }
    })?;
    tokens.drain(..tokens.len().saturating_sub(kept));
    let token_strs = match has_strs {
        true => Some(deadline.within(service.engine.token_strs(tokens.clone())).await?),
        false => None,
    };
    Ok(Json(Tokens { count: tokens.len(), max_model_len, tokens, token_strs }))
}

/// An answer, written without a value a token.
#[derive(Debug, Serialize)]
pub(crate) struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// What a request asks for.
struct Asked {
    prompt: Prompt,
    /// What it would be continued with, where it says anything of that.
    params: Params,
    truncation: Option<Truncation>,
    has_strs: bool,
}

/// Parameters, with their names in the body where they are still to be checked.
type Params = (SamplingParams, Option<FieldNames>);

impl FromBody for Asked {
    fn take(service: &Service, _: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        service.model_name(body.take_text("model")?)?;
        let prompt = take_prompt(body)?;
        let truncation = take_truncation(body)?;
        let has_strs = body.take_bool("return_token_strs")?.unwrap_or(false);
        let params = take_params(service, body, matches!(prompt, Prompt::Chat(_)))?;
        Ok(Self { prompt, params, truncation, has_strs })
    }
}

fn take_prompt(body: &mut Body) -> Result<Prompt, ApiError> {
    match (body.peek("prompt").is_some(), body.peek("messages").is_some()) {
        (true, true) => Err(ApiError::bad_field("messages", "prompt and messages exclude each other")),
        (false, true) => {
            let (chat, tools) = conversation::take(body)?;
            tools.check()?;
            Ok(Prompt::Chat(chat))
        }
        (false, false) => Err(ApiError::bad_field("prompt", "expected prompt or messages")),
        (true, false) => {
            let is_bare = body.take_bool("add_special_tokens")? == Some(false);
            let prompt = Prompt::Text(body.take_text("prompt")?.unwrap_or_default());
            Ok(if is_bare { prompts::bare(prompt) } else { prompt })
        }
    }
}

/// The body of a chat, or of a completion, may come here as it is: what the other route would refuse is refused. Of its parameters
/// only the length of the output says something of the prompt.
fn take_params(service: &Service, body: &Body, is_chat: bool) -> Result<Params, ApiError> {
    let (mut rest, defaults) = (body.clone(), &service.engine.model().default_params);
    if rest.rest().is_empty() {
        let params = if is_chat { sampling::chat_defaults(defaults) } else { defaults.clone() };
        return Ok((params, None));
    }
    let (params, names) = match is_chat {
        true => sampling::of_chat(&mut rest, defaults)?,
        false => sampling::of_completion(&mut rest, defaults)?,
    };
    Ok((params, Some(names)))
}

async fn checked(service: &Service, (params, names): Params) -> Result<SamplingParams, ApiError> {
    if let Some(names) = names {
        // Which prompt it is does not matter.
        let checked = service.engine.check(Request::new(vec![0], params.clone())).await;
        checked.map_err(|error| names.translate(error.into()))?;
    }
    Ok(params)
}

/// Tokens of a prompt that are kept, the last ones.
enum Truncation {
    Kept(usize),
    /// What the context holds beside the output.
    ToContext,
}

fn take_truncation(body: &mut Body) -> Result<Option<Truncation>, ApiError> {
    match body.take_integer("truncate_prompt_tokens")? {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation::ToContext)),
        Some(given) if given >= 1 => Ok(Some(Truncation::Kept(usize::try_from(given).unwrap_or(usize::MAX)))),
        Some(given) => {
            let rule = "at least 1, or -1 for as many as the context holds beside max_tokens";
            let message = format!("truncate_prompt_tokens is {given}: expected {rule}");
            Err(ApiError::bad_field("truncate_prompt_tokens", message))
        }
    }
}

/// The text of tokens, special ones included.
pub(crate) async fn detokenize(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (AskedIds(tokens), deadline) = service.read(&caller, body).await?;
    let named = |error: quire_engine::Error| ApiError { param: Some("tokens".to_owned()), ..error.into() };
    let text = deadline.within(service.engine.detokenize(tokens).map_err(named)).await?;
    Ok(Json(json!({ "prompt": text })))
}

/// The tokens whose text is asked for.
struct AskedIds(Vec<u32>);

impl FromBody for AskedIds {
    fn take(service: &Service, _: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        service.model_name(body.take_text("model")?)?;
        match body.take_value("tokens") {
            Some(Value::Array(tokens)) => prompts::token_ids("tokens", "tokens", &tokens).map(Self),
            _ => Err(ApiError::bad_field("tokens", "tokens: expected a list of token ids")),
        }
    }
}
