//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use quire_engine::{
    CompletionOutput, Delta, FinishReason, Prompt, Request, RequestEvent, RequestOutput, SamplingParams,
    StopReason, TokenLogprobs,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::body::Body;
use super::caller::Caller;
use super::error::ApiError;
use super::events::{self, EventWriter, Events};
use super::field_names::FieldNames;
use super::logprobs::{CompletionLogprobs, TokenForm};
use super::service::{Service, unix_time_s};
use super::streaming::{self, Streaming};
use super::usage::Usage;
use super::{common, prompts, request_id, sampling};

pub(crate) async fn completions(
    State(service): State<Arc<Service>>,
    caller: Caller,
    mut body: Body,
) -> Result<Response, ApiError> {
    let asked = Asked::take(&service, &caller, &mut body)?;
    service.pass_over(&body, &caller)?;
    let echoes = asked.echoes(&service).await?;
    let form = Form {
        head: asked.head,
        num_outputs: asked.params.n as usize,
        token_form: service.settings.token_form(),
        shows_cached: service.settings.enable_prompt_tokens_details,
        echoes,
    };
    if asked.is_prompt_alone {
        return prompt_alone(&service, form, asked.prompts, asked.params).await;
    }
    let requests =
        common::requests(&form.head.id, asked.prompts, &asked.params, &asked.common, service.tenant(&caller));
    let submitted = service.submit(&caller, requests, asked.max_tokens).await;
    let submitted = submitted.map_err(|error| asked.names.translate(error))?;
    let num_prompt_tokens = submitted.requests.iter().map(|request| request.num_prompt_tokens).sum();
    let usage = Usage::of_prompt(num_prompt_tokens);
    match asked.streaming {
        Some(streaming) => {
            let chunks = Chunks::new(form, streaming, usage, submitted.requests.len());
            Ok(events::response(submitted, chunks, service.settings.error_form))
        }
        None => {
            let open = submitted.open;
            let outputs = try_join_all(submitted.requests.into_iter().map(|request| request.stream.finish()));
            let outputs = open.within(outputs).await?;
            open.generated(outputs.iter().map(common::num_generated).sum());
            Ok(Json(form.completion(outputs, usage)).into_response())
        }
    }
}

/// What a request asks for.
struct Asked {
    head: Head,
    prompts: Vec<Prompt>,
    params: SamplingParams,
    names: FieldNames,
    /// What the client wrote itself.
    max_tokens: Option<u64>,
    /// The prompt is all that is wanted: `echo` with `max_tokens` 0.
    is_prompt_alone: bool,
    echo: bool,
    streaming: Option<Streaming>,
    common: common::CommonFields,
}

impl Asked {
    fn take(service: &Service, caller: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        let model = service.model_name(body.take_text("model")?)?;
        let prompts = prompts::take(body)?;
        let streaming = streaming::take(body, service.settings.includes_usage)?;
        let echo = body.take_bool("echo")?.unwrap_or(false);
        if body.take_text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::not_built("suffix", "suffix is not built: expected none"));
        }
        let is_prompt_alone = echo && body.peek("max_tokens").and_then(Value::as_u64) == Some(0);
        if is_prompt_alone {
            body.take_value("max_tokens");
        }
        let max_tokens = body.peek("max_tokens").and_then(Value::as_u64);
        let (mut params, names) = sampling::of_completion(body, &service.engine.model().default_params)?;
        if streaming.is_some() && params.prompt_logprobs.is_some_and(|num| num != 0) {
            let message = "prompt_logprobs: expected none in a stream";
            return Err(ApiError::bad_field("prompt_logprobs", message));
        }
        if echo && params.logprobs.is_some() {
            if streaming.is_some() {
                let message = "echo with logprobs is not built for streams: expected stream = false";
                return Err(ApiError::not_built("echo", message));
            }
            params.prompt_logprobs = params.prompt_logprobs.max(params.logprobs);
        }
        let common = common::CommonFields::take(body)?;
        let id = request_id::of("cmpl", caller, common.request_id.clone());
        let head = Head { id, object: "text_completion", created: unix_time_s(), model };
        Ok(Self { head, prompts, params, names, max_tokens, is_prompt_alone, echo, streaming, common })
    }

    /// The texts that outputs begin with, a prompt each.
    async fn echoes(&self, service: &Service) -> Result<Option<Vec<String>>, ApiError> {
        if !self.echo {
            return Ok(None);
        }
        let texts = self.prompts.iter().map(async |prompt| match prompt {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::TokenIds(token_ids) => service.engine.detokenize(token_ids.clone()).await,
            Prompt::Chat(_) => unreachable!("a completion has no conversation"),
        });
        Ok(Some(try_join_all(texts).await?))
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
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
    prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

/// A piece of a stream. All its keys are always there.
#[derive(Debug, Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [ChunkChoice],
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
}

/// How outputs are written.
struct Form {
    head: Head,
    /// Outputs of each prompt.
    num_outputs: usize,
    token_form: TokenForm,
    shows_cached: bool,
    echoes: Option<Vec<String>>,
}

impl Form {
    fn completion(self, outputs: Vec<RequestOutput>, mut usage: Usage) -> Completion {
        let mut choices = Vec::new();
        for (place, output) in outputs.into_iter().enumerate() {
            usage.generated(common::num_generated(&output));
            if self.shows_cached {
                usage.cached(output.num_cached_tokens.into());
            }
            let prompt_logprobs = output.prompt_logprobs.as_deref();
            let of_prompt = |one| self.choice(place, one, prompt_logprobs);
            choices.extend(output.outputs.iter().map(of_prompt));
        }
        Completion { head: self.head, choices, usage }
    }

    fn choice(
        &self,
        place: usize,
        output: &CompletionOutput,
        prompt_logprobs: Option<&[Option<TokenLogprobs>]>,
    ) -> Choice {
        let echo = self.echoes.as_ref().map(|echoes| echoes[place].as_str()).unwrap_or_default();
        let logprobs = output.logprobs.as_deref().map(|tokens| {
            let mut logprobs = CompletionLogprobs::default();
            let echoed = prompt_logprobs.filter(|_| self.echoes.is_some());
            let start = echoed.map_or(0, |prompt| push_prompt(&mut logprobs, echo, prompt, self.token_form));
            push_all(&mut logprobs, tokens, start, self.token_form);
            logprobs
        });
        Choice {
            index: place * self.num_outputs + output.index as usize,
            text: format!("{echo}{}", output.text),
            logprobs,
            finish_reason: Some(output.finish_reason),
            stop_reason: output.stop_reason.clone(),
            prompt_logprobs: prompt_logprobs.map(common::prompt_logprobs),
        }
    }
}

/// Adds the tokens of an echoed prompt; returns where what follows them stands.
fn push_prompt(
    logprobs: &mut CompletionLogprobs,
    text: &str,
    prompt: &[Option<TokenLogprobs>],
    form: TokenForm,
) -> usize {
    let known: usize = prompt.iter().flatten().map(|token| token.token.token.len()).sum();
    // The first token has no entry: its text is what the others leave.
    let first = text.get(..text.len().saturating_sub(known)).unwrap_or_default();
    prompt.iter().fold(0, |offset, token| match token {
        Some(token) => logprobs.push(token, offset, form),
        None => logprobs.push_first(first),
    })
}

fn push_all(
    logprobs: &mut CompletionLogprobs,
    tokens: &[TokenLogprobs],
    start: usize,
    form: TokenForm,
) -> usize {
    tokens.iter().fold(start, |offset, token| logprobs.push(token, offset, form))
}

/// The prompt as it was read, and no token more.
async fn prompt_alone(
    service: &Service,
    form: Form,
    prompts: Vec<Prompt>,
    params: SamplingParams,
) -> Result<Response, ApiError> {
    let counts = prompts.into_iter().map(async |prompt| {
        let params =
            SamplingParams { logprobs: None, prompt_logprobs: None, max_tokens: Some(1), ..params.clone() };
        let request = service.engine.check(Request::new(prompt, params)).await?;
        Ok::<_, ApiError>(match request.prompt {
            Prompt::TokenIds(token_ids) => token_ids.len() as u64,
            _ => 0,
        })
    });
    let counts = try_join_all(counts).await?;
    let choices = form.echoes.iter().flatten().flat_map(|text| std::iter::repeat_n(text, form.num_outputs));
    let choices = choices.enumerate().map(|(index, text)| Choice {
        index,
        text: text.clone(),
        logprobs: None,
        finish_reason: Some(FinishReason::Length),
        stop_reason: None,
        prompt_logprobs: None,
    });
    let completion = Completion {
        choices: choices.collect(),
        head: form.head,
        usage: Usage::of_prompt(counts.iter().sum()),
    };
    Ok(Json(completion).into_response())
}

/// Writes a stream.
struct Chunks {
    form: Form,
    streaming: Streaming,
    usage: Usage,
    /// Where the next token of each choice stands in its text; none before its first event.
    offsets: Vec<Option<usize>>,
}

impl Chunks {
    fn new(form: Form, streaming: Streaming, usage: Usage, num_prompts: usize) -> Self {
        let offsets = vec![None; num_prompts * form.num_outputs];
        Self { form, streaming, usage, offsets }
    }

    fn delta(&mut self, place: usize, delta: Delta, out: &mut Events) {
        self.usage.generated(delta.token_ids.len() as u64);
        let index = place * self.form.num_outputs + delta.index as usize;
        let mut text = delta.text;
        let start = match self.offsets[index] {
            Some(offset) => offset,
            None => {
                let echo = self.form.echoes.as_ref().map(|echoes| echoes[place].as_str()).unwrap_or_default();
                text.insert_str(0, echo);
                echo.chars().count()
            }
        };
        let mut end = start;
        let logprobs = delta.logprobs.map(|tokens| {
            let mut logprobs = CompletionLogprobs::default();
            end = push_all(&mut logprobs, &tokens, start, self.form.token_form);
            logprobs
        });
        self.offsets[index] = Some(end);
        if text.is_empty() && logprobs.is_none() && delta.finish_reason.is_none() {
            return;
        }
        let (finish_reason, stop_reason) = (delta.finish_reason, delta.stop_reason);
        self.send(&[ChunkChoice { index, text, logprobs, finish_reason, stop_reason }], out);
    }

    fn send(&self, choices: &[ChunkChoice], out: &mut Events) {
        let usage = Some(self.usage).filter(|_| self.streaming.continuous_usage);
        out.data(&Chunk { head: &self.form.head, choices, usage });
    }
}

impl EventWriter for Chunks {
    fn write(&mut self, place: usize, event: RequestEvent, out: &mut Events) -> Result<(), ApiError> {
        match event {
            RequestEvent::Delta(delta) => self.delta(place, delta, out),
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
