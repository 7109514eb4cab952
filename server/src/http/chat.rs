//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use quire_engine::chat::ChatParser;
use quire_engine::{
    CompletionOutput, Delta, Prompt, RequestEvent, RequestOutput, SamplingParams, StopReason,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::events::{self, EventWriter, Events};
use super::field_names::FieldNames;
use super::logprobs::{ChatLogprobs, TokenForm};
use super::message::{ChatFinish, Message, MessageDelta};
use super::service::{Service, unix_time_s};
use super::streaming::{self, Streaming};
use super::tools::Reading;
use super::usage::Usage;
use super::{common, conversation, request_id, sampling};

pub(crate) async fn chat_completions(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Response, ApiError> {
    let asked = Asked::take(&service, &caller, &mut body)?;
    service.pass_over(&body, &caller)?;
    let requests = common::requests(
        &asked.head.id,
        vec![asked.prompt],
        &asked.params,
        &asked.common,
        service.tenant(&caller),
    );
    let submitted = service.submit(&caller, requests, asked.max_tokens).await;
    let mut submitted = submitted.map_err(|error| asked.names.translate(error))?;
    let reading = match submitted.requests.first().filter(|_| asked.reading.asks_for_prompt()) {
        Some(request) => {
            let end = service.engine.detokenize(request.prompt_end.clone()).await?;
            asked.reading.with_prompt(&end)
        }
        None => asked.reading,
    };
    let form = Form {
        head: asked.head,
        role: service.settings.response_role.clone(),
        echo: asked.echo,
        reading,
        token_form: service.settings.token_form(),
        shows_cached: service.settings.enable_prompt_tokens_details,
    };
    let usage = Usage::of_prompt(submitted.requests.iter().map(|request| request.num_prompt_tokens).sum());
    if let Some(streaming) = asked.streaming {
        let chunks = Chunks::new(form, streaming, usage, asked.params.n as usize);
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
    names: FieldNames,
    max_tokens: Option<u64>,
    reading: Reading,
    /// What answers begin with: the final message, where it is continued and to be shown.
    echo: String,
    streaming: Option<Streaming>,
    common: common::CommonFields,
}

impl Asked {
    fn take(service: &Service, caller: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        let model = service.model_name(body.take_text("model")?)?;
        let mut chat = conversation::take(body)?;
        let streaming = streaming::take(body, service.settings.includes_usage)?;
        let limit = body.peek("max_completion_tokens").or_else(|| body.peek("max_tokens"));
        let max_tokens = limit.and_then(Value::as_u64);
        let (mut params, mut names) = sampling::of_chat(body, &service.engine.model().default_params)?;
        if streaming.is_some() && params.prompt_logprobs.is_some_and(|num| num != 0) {
            let message = "prompt_logprobs: expected none in a stream";
            return Err(ApiError::bad_field("prompt_logprobs", message));
        }
        let reading = Reading::take(body, service.settings.reading, &mut chat, (&mut params, &mut names))?;
        let is_echoed = body.take_bool("echo")?.unwrap_or(false);
        let last =
            chat.messages.last().filter(|last| is_echoed && last.role == service.settings.response_role);
        let echo = last.and_then(|last| last.content.as_ref()).map(ToString::to_string).unwrap_or_default();
        let common = common::CommonFields::take(body)?;
        let id = request_id::of("chatcmpl", caller, common.request_id.clone());
        let object = if streaming.is_some() { "chat.completion.chunk" } else { "chat.completion" };
        let head = Head { id, object, created: unix_time_s(), model };
        let prompt = Prompt::Chat(chat);
        Ok(Self { head, prompt, params, names, max_tokens, reading, echo, streaming, common })
    }
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
    finish_reason: ChatFinish,
    stop_reason: Option<StopReason>,
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
    finish_reason: Option<ChatFinish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason>,
}

/// How answers are written.
struct Form {
    head: Head,
    role: String,
    echo: String,
    reading: Reading,
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
        let said = ChatParser::parse(self.reading.of_output(), &output.text);
        let has_called = self.reading.ends_to_call && !said.tool_calls.is_empty();
        Choice {
            index: output.index as usize,
            message: Message::new(&self.role, &self.echo, said),
            logprobs: output.logprobs.as_deref().map(|tokens| ChatLogprobs::of(tokens, self.token_form)),
            finish_reason: ChatFinish::of(output.finish_reason, has_called),
            stop_reason: output.stop_reason,
        }
    }
}

/// Writes a stream.
struct Chunks {
    form: Form,
    streaming: Streaming,
    usage: Usage,
    /// What reads each choice, and whether its role was told.
    choices: Vec<(ChatParser, bool)>,
}

impl Chunks {
    fn new(form: Form, streaming: Streaming, usage: Usage, num_choices: usize) -> Self {
        let choices = (0..num_choices).map(|_| (ChatParser::new(form.reading.of_output()), false)).collect();
        Self { form, streaming, usage, choices }
    }

    fn delta(&mut self, delta: Delta, out: &mut Events) {
        let index = delta.index as usize;
        self.begin(index, out);
        self.usage.generated(delta.token_ids.len() as u64);
        let parser = &mut self.choices[index].0;
        let mut said = parser.push(&delta.text);
        if delta.finish_reason.is_some() {
            said.extend(parser.finish());
        }
        let has_called = self.form.reading.ends_to_call && parser.num_tool_calls() > 0;
        let mut end =
            delta.finish_reason.map(|reason| (ChatFinish::of(reason, has_called), delta.stop_reason));
        let mut logprobs =
            delta.logprobs.as_deref().map(|tokens| ChatLogprobs::of(tokens, self.form.token_form));
        let mut pieces: Vec<MessageDelta<'_>> = said.into_iter().map(MessageDelta::from).collect();
        if pieces.is_empty() && (end.is_some() || logprobs.is_some()) {
            pieces.push(MessageDelta::content(String::new()));
        }
        let num_pieces = pieces.len();
        for (place, delta) in pieces.into_iter().enumerate() {
            // Log-probabilities come with the first piece of their tokens, the end with the last one.
            let end = if place + 1 == num_pieces { end.take() } else { None };
            let (finish_reason, stop_reason) =
                end.map_or((None, None), |(finish, stop)| (Some(finish), stop));
            let logprobs = logprobs.take();
            self.send(&[ChunkChoice { index, delta, logprobs, finish_reason, stop_reason }], out);
        }
    }

    /// The first event of a choice says who speaks, and what is shown of the message that is continued.
    fn begin(&mut self, index: usize, out: &mut Events) {
        if std::mem::replace(&mut self.choices[index].1, true) {
            return;
        }
        let delta = MessageDelta::first(&self.form.role, self.form.echo.clone());
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
            RequestEvent::SoFar(_) | RequestEvent::Finished(_) => {}
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
