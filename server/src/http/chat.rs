//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use quire_engine::{
    CompletionOutput, Delta, FinishReason, Prompt, RequestEvent, RequestOutput, SamplingParams, StopReason,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::events::{self, EventWriter, Events};
use super::logprobs::{ChatLogprobs, TokenForm};
use super::service::{Service, unix_time_s};
use super::streaming::{self, Streaming};
use super::usage::Usage;
use super::{common, conversation, request_id, sampling};

pub(crate) async fn chat_completions(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Response, ApiError> {
    let asked = Asked::take(&service, &caller, &mut body)?;
    service.pass_over(&body, &caller)?;
    let form = Form {
        head: asked.head,
        role: service.settings.response_role.clone(),
        echo: asked.echo,
        token_form: service.settings.token_form(),
        shows_cached: service.settings.enable_prompt_tokens_details,
    };
    let requests = common::requests(
        &form.head.id,
        vec![asked.prompt],
        &asked.params,
        &asked.common,
        service.tenant(&caller),
    );
    let mut submitted = service.submit(&caller, requests, asked.max_tokens).await?;
    let usage = Usage::of_prompt(submitted.requests.iter().map(|request| request.num_prompt_tokens).sum());
    if let Some(streaming) = asked.streaming {
        let chunks = Chunks { form, streaming, usage, has_begun: vec![false; asked.params.n as usize] };
        return Ok(events::response(submitted, chunks, service.settings.error_form));
    }
    let request = submitted.requests.pop().expect("one prompt, one request");
    let output = submitted.open.within(request.stream.finish()).await?;
    submitted.open.generated(common::num_generated(&output));
    Ok(Json(form.completion(output, usage)).into_response())
}

/// What a request asks for.
struct Asked {
    head: Head,
    prompt: Prompt,
    params: SamplingParams,
    max_tokens: Option<u64>,
    /// What answers begin with: the final message, where it is continued and to be shown.
    echo: String,
    streaming: Option<Streaming>,
    common: common::CommonFields,
}

impl Asked {
    fn take(service: &Service, caller: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        let model = service.model_name(body.take_text("model")?)?;
        let chat = conversation::take(body)?;
        refuse_tools(body)?;
        let streaming = streaming::take(body, service.settings.includes_usage)?;
        let limit = body.peek("max_completion_tokens").or_else(|| body.peek("max_tokens"));
        let max_tokens = limit.and_then(Value::as_u64);
        let params = sampling::of_chat(body, &service.engine.model().default_params)?;
        if streaming.is_some() && params.prompt_logprobs.is_some_and(|num| num != 0) {
            let message = "prompt_logprobs: expected none in a stream";
            return Err(ApiError::bad_field("prompt_logprobs", message));
        }
        let is_echoed = body.take_bool("echo")?.unwrap_or(false);
        let last =
            chat.messages.last().filter(|last| is_echoed && last.role == service.settings.response_role);
        let echo = last.and_then(|last| last.content.as_ref()).map(ToString::to_string).unwrap_or_default();
        let common = common::CommonFields::take(body)?;
        let id = request_id::of("chatcmpl", caller, common.request_id.clone());
        let object = if streaming.is_some() { "chat.completion.chunk" } else { "chat.completion" };
        let head = Head { id, object, created: unix_time_s(), model };
        Ok(Self { head, prompt: Prompt::Chat(chat), params, max_tokens, echo, streaming, common })
    }
}

/// Tools that are given but may not be called are no reason to refuse.
fn refuse_tools(body: &mut Body) -> Result<(), ApiError> {
    let tools =
        body.take_value("tools").filter(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty()));
    let choice = body.take_value("tool_choice");
    if tools.is_none() || choice == Some("none".into()) {
        return Ok(());
    }
    Err(ApiError::not_built("tools", "tools are not built yet: expected tool_choice = \"none\""))
}

/// The fields that the answer and all its chunks begin with.
#[derive(Clone, Debug, Serialize)]
struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

#[derive(Debug, Serialize)]
struct Completion {
    #[serde(flatten)]
    head: Head,
    choices: Vec<Choice>,
    usage: Usage,
    prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: FinishReason,
    stop_reason: Option<StopReason>,
}

#[derive(Debug, Serialize)]
struct Message {
    role: String,
    content: Option<String>,
}

/// A piece of a stream. Keys that say nothing are left out.
#[derive(Debug, Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: MessageDelta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason>,
}

#[derive(Debug, Default, Serialize)]
struct MessageDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

/// How answers are written.
struct Form {
    head: Head,
    role: String,
    echo: String,
    token_form: TokenForm,
    shows_cached: bool,
}

impl Form {
    fn completion(self, output: RequestOutput, mut usage: Usage) -> Completion {
        usage.generated(common::num_generated(&output));
        if self.shows_cached {
            usage.cached(output.num_cached_tokens.into());
        }
        Completion {
            choices: output.outputs.into_iter().map(|one| self.choice(one)).collect(),
            usage,
            prompt_logprobs: output.prompt_logprobs.as_deref().map(common::prompt_logprobs),
            head: self.head,
        }
    }

    fn choice(&self, output: CompletionOutput) -> Choice {
        Choice {
            index: output.index as usize,
            message: Message {
                role: self.role.clone(),
                content: Some(format!("{}{}", self.echo, output.text)),
            },
            logprobs: output.logprobs.as_deref().map(|tokens| ChatLogprobs::of(tokens, self.token_form)),
            finish_reason: output.finish_reason,
            stop_reason: output.stop_reason,
        }
    }
}

/// Writes a stream.
struct Chunks {
    form: Form,
    streaming: Streaming,
    usage: Usage,
    /// Whether the role of each choice was told.
    has_begun: Vec<bool>,
}

impl Chunks {
    fn delta(&mut self, delta: Delta, out: &mut Events) {
        let index = delta.index as usize;
        self.begin(index, out);
        self.usage.generated(delta.token_ids.len() as u64);
        if delta.text.is_empty() && delta.logprobs.is_none() && delta.finish_reason.is_none() {
            return;
        }
        let choice = ChunkChoice {
            index,
            delta: MessageDelta { content: Some(&delta.text), ..MessageDelta::default() },
            logprobs: delta.logprobs.as_deref().map(|tokens| ChatLogprobs::of(tokens, self.form.token_form)),
            finish_reason: delta.finish_reason,
            stop_reason: delta.stop_reason,
        };
        self.send(&[choice], out);
    }

    /// The first event of a choice says who speaks, and what is shown of the message that is continued.
    fn begin(&mut self, index: usize, out: &mut Events) {
        if std::mem::replace(&mut self.has_begun[index], true) {
            return;
        }
        let delta = MessageDelta { role: Some(&self.form.role), content: Some(&self.form.echo) };
        self.send(
            &[ChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None }],
            out,
        );
    }

    fn send(&self, choices: &[ChunkChoice<'_>], out: &mut Events) {
        let usage = Some(self.usage).filter(|_| self.streaming.continuous_usage);
        out.data(&Chunk { head: &self.form.head, choices, usage });
    }
}

impl EventWriter for Chunks {
    fn write(&mut self, _place: usize, event: RequestEvent, out: &mut Events) -> Result<(), ApiError> {
        match event {
            RequestEvent::Delta(delta) => self.delta(delta, out),
            RequestEvent::Finished(output) if self.form.shows_cached => {
                self.usage.cached(output.num_cached_tokens.into());
            }
            RequestEvent::Finished(_) => {}
            RequestEvent::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.include_usage {
            out.data(&Chunk { head: &self.form.head, choices: &[], usage: Some(self.usage) });
        }
    }
}
