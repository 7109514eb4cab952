//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::{join_all, try_join_all};
use quire_engine::{
    CompletionOutput, Delta, FinishReason, Prompt, Request, RequestOutput, RequestStream, SamplingParams,
    StopReason, TokenLogprobs,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{Answer, Head};
use super::beams::{AskedSearch, BeamFields};
use super::body::Body;
use super::caller::Caller;
use super::chunks::{ChoiceWriter, ChunkSink, Chunks};
use super::echo::{self, Echo};
use super::error::ApiError;
use super::field_names::FieldNames;
use super::from_body::FromBody;
use super::logprobs::{CompletionLogprobs, TokenForm};
use super::service::Service;
use super::streaming::{self, Streaming};
use super::text_place::TextPlace;
use super::{common, events, prompts, request_id, sampling};

pub(crate) async fn completions(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let (asked, deadline): (Asked, _) = service.read(&caller, body).await?;
    let mut form = Form {
        num_outputs: asked.params.n as usize,
        token_form: asked.token_form,
        has_logprobs: asked.params.logprobs.is_some(),
        is_prompt_alone: asked.is_prompt_alone,
        is_search: asked.search.beams.is_some(),
        echoes: Vec::new(),
        starts: Vec::new(),
    };
    let echoed = if asked.echo { asked.prompts.clone() } else { Vec::new() };
    let id = &asked.head.id;
    let tenant = service.tenant(&caller);
    let requests = common::requests(id, asked.prompts, &asked.params, &asked.common, tenant);
    let requests = requests.map(|request| Request {
        prompt_alone: asked.is_prompt_alone,
        beam_search: asked.search.beams.clone(),
        ..request
    });
    let names = asked.names;
    let prepared = service.prepare((&caller, deadline), requests, asked.max_tokens).await;
    let prepared = prepared.map_err(|error| names.translate(error))?;
    let echoes = echoed
        .into_iter()
        .zip(&prepared.requests)
        .map(|(prompt, request)| Echo::of(&service, prompt, request.prompt(), &asked.params));
    form.echoes = try_join_all(echoes).await?;
    if form.has_logprobs && form.echoes.is_empty() {
        let prompts = prepared.requests.iter().map(|request| echo::place_behind(&service, request.prompt()));
        form.starts = join_all(prompts).await;
    }
    let mut usage = prepared.usage().with_details(service.settings.enable_prompt_tokens_details);
    let head = asked.head;
    if let Some(streaming) = asked.streaming {
        let writer = Choices::new(form, prepared.requests.len());
        return events::response(&service, prepared, Chunks::new(head, streaming, usage, names, writer));
    }
    let (streams, open) = prepared.start()?;
    let outputs = try_join_all(streams.into_iter().map(RequestStream::finish));
    let outputs = open.within(outputs).await.map_err(|error| names.translate(error))?;
    outputs.iter().for_each(|output| usage.whole(output));
    open.generated(usage.completion_tokens);
    Ok(Json(Answer { head, choices: form.choices(&outputs), usage }).into_response())
}

/// What a request asks for.
struct Asked {
    head: Head,
    prompts: Vec<Prompt>,
    params: SamplingParams,
    names: FieldNames,
    /// A search in place of drawing.
    search: AskedSearch,
    /// What the client wrote itself.
    max_tokens: Option<u64>,
    /// The prompt is all that is wanted: `echo` with `max_tokens` 0.
    is_prompt_alone: bool,
    echo: bool,
    token_form: TokenForm,
    streaming: Option<Streaming>,
    common: common::CommonFields,
}

impl FromBody for Asked {
    fn take(service: &Service, caller: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        let model = service.model_name(body.take_text("model")?)?;
        let prompts = prompts::take(body)?;
        let streaming = streaming::take(body, service.settings.includes_usage)?;
        let echo = body.take_bool("echo")?.unwrap_or(false);
        if body.take_text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::not_built("suffix", "suffix is not built: expected none"));
        }
        let is_prompt_alone = echo && body.peek_count("max_tokens") == Some(0);
        if is_prompt_alone {
            body.take_value("max_tokens");
        }
        let max_tokens = body.peek_count("max_tokens");
        let beams = BeamFields::take(body)?;
        let (mut params, mut names) = sampling::of_completion(body, &service.engine.model().default_params)?;
        if is_prompt_alone {
            (params.max_tokens, params.min_tokens) = (None, 0);
        }
        let search = AskedSearch::of(beams, service, (&params, &mut names))?;
        body.leave(&search.without_effect);
        if streaming.is_some() && params.prompt_logprobs.is_some_and(|num| num != 0) {
            let message = "prompt_logprobs: expected none in a stream";
            return Err(ApiError::bad_field("prompt_logprobs", message));
        }
        if echo && params.logprobs.is_some() {
            params.prompt_logprobs = most(params.prompt_logprobs, params.logprobs);
        }
        let token_form = service.settings.token_form(body.take_bool("return_tokens_as_token_ids")?);
        let common = common::CommonFields::take(body)?;
        let id = request_id::of("cmpl", caller, common.request_id.clone());
        let head = Head::new(id, "text_completion", model);
        Ok(Self {
            head,
            prompts,
            params,
            names,
            search,
            max_tokens,
            is_prompt_alone,
            echo,
            token_form,
            streaming,
            common,
        })
    }
}

/// The larger number of log-probabilities: -1 is all of them.
fn most(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    if [one, other].contains(&Some(-1)) { Some(-1) } else { one.max(other) }
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

/// A choice of a chunk. All its keys are always there.
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
    /// Whether its outputs are those of a search: no text of it is certain before its end.
    is_search: bool,
    /// Whether there is one output without a token, which stands for all.
    is_prompt_alone: bool,
    /// Outputs of each prompt.
    num_outputs: usize,
    has_logprobs: bool,
    token_form: TokenForm,
    /// What they begin with, a prompt each; empty where that is nothing.
    echoes: Vec<Echo>,
    /// Where they begin otherwise, a prompt each; empty where nobody asks.
    starts: Vec<TextPlace>,
}

impl Form {
    fn choices(&self, outputs: &[RequestOutput]) -> Vec<Choice> {
        outputs.iter().enumerate().flat_map(|(place, output)| self.choices_of(place, output)).collect()
    }

    /// The choices of the prompt at `place`.
    fn choices_of(&self, place: usize, output: &RequestOutput) -> Vec<Choice> {
        let num_times = if self.is_prompt_alone { self.num_outputs } else { 1 };
        let outputs = (0..num_times).flat_map(|_| &output.outputs);
        outputs.enumerate().map(|(index, one)| self.choice(place, index, one, output)).collect()
    }

    /// Adds what is echoed of the prompt at `place`; where the first token of its outputs stands.
    fn begin(
        &self,
        place: usize,
        prompt: &[Option<TokenLogprobs>],
        logprobs: &mut CompletionLogprobs,
    ) -> TextPlace {
        match self.echoes.get(place) {
            Some(echo) => echo.push_tokens(logprobs, prompt, self.token_form),
            None => self.starts.get(place).cloned().unwrap_or_default(),
        }
    }

    fn choice(&self, place: usize, index: usize, one: &CompletionOutput, of: &RequestOutput) -> Choice {
        let echo = self.echoes.get(place);
        let logprobs = self.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            let prompt = of.prompt_logprobs.as_deref().unwrap_or_default();
            let mut at = self.begin(place, prompt, &mut logprobs);
            push_all(&mut logprobs, one.logprobs.as_deref().unwrap_or_default(), &mut at, self.token_form);
            logprobs
        });
        Choice {
            index: place * self.num_outputs + index,
            text: format!("{}{}", echo.map_or("", |echo| &echo.text), one.text),
            logprobs,
            finish_reason: Some(one.finish_reason),
            stop_reason: one.stop_reason.clone(),
            prompt_logprobs: of.prompt_logprobs.as_deref().map(common::prompt_logprobs),
        }
    }
}

fn push_all(
    logprobs: &mut CompletionLogprobs,
    tokens: &[TokenLogprobs],
    place: &mut TextPlace,
    form: TokenForm,
) {
    tokens.iter().for_each(|token| logprobs.push(token, place, form));
}

/// Writes the choices of a stream.
struct Choices {
    form: Form,
    /// Where the next token of each choice stands in its text; none before its first event.
    offsets: Vec<Option<TextPlace>>,
    /// The log-probabilities of each prompt, once they are known.
    prompts: Vec<Vec<Option<TokenLogprobs>>>,
}

impl Choices {
    fn new(form: Form, num_prompts: usize) -> Self {
        let offsets = vec![None; num_prompts * form.num_outputs];
        Self { offsets, prompts: vec![Vec::new(); num_prompts], form }
    }

    /// What a choice begins with, and where its first token stands.
    fn opening(&self, place: usize) -> (&str, CompletionLogprobs, TextPlace) {
        let mut logprobs = CompletionLogprobs::default();
        let start = match self.form.has_logprobs {
            true => self.form.begin(place, &self.prompts[place], &mut logprobs),
            false => TextPlace::default(),
        };
        (self.form.echoes.get(place).map_or("", |echo| &echo.text), logprobs, start)
    }
}

impl ChoiceWriter for Choices {
    const HAS_NULLS: bool = true;

    fn delta(&mut self, place: usize, delta: Delta, chunks: &mut ChunkSink<'_>) {
        let index = place * self.form.num_outputs + delta.index as usize;
        let mut text = delta.text;
        let (mut logprobs, mut at) = match self.offsets[index].take() {
            Some(at) => (CompletionLogprobs::default(), at),
            None => {
                let (echo, logprobs, start) = self.opening(place);
                text.insert_str(0, echo);
                (logprobs, start)
            }
        };
        let logprobs = delta.logprobs.map(|tokens| {
            push_all(&mut logprobs, &tokens, &mut at, self.form.token_form);
            logprobs
        });
        self.offsets[index] = Some(at);
        if text.is_empty() && logprobs.is_none() && delta.finish_reason.is_none() {
            return;
        }
        let (finish_reason, stop_reason) = (delta.finish_reason, delta.stop_reason);
        chunks.send(ChunkChoice { index, text, logprobs, finish_reason, stop_reason });
    }

    fn prompt(&mut self, place: usize, logprobs: Vec<Option<TokenLogprobs>>) {
        if self.form.has_logprobs && !self.form.echoes.is_empty() {
            self.prompts[place] = logprobs;
        }
    }

    fn comes_whole(&self) -> bool {
        self.form.is_search || self.form.is_prompt_alone
    }

    fn whole(&mut self, place: usize, output: &RequestOutput, chunks: &mut ChunkSink<'_>) {
        for choice in self.form.choices_of(place, output) {
            let Choice { index, text, logprobs, finish_reason, stop_reason, .. } = choice;
            chunks.send(ChunkChoice { index, text, logprobs, finish_reason, stop_reason });
        }
    }
}
