//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use quire_engine::chat::{AnswerTokens, ChatDelta, ChatOutput, ChatParser, ReasoningPlace};
use quire_engine::{
    CompletionOutput, Delta, Prompt, Request, RequestOutput, SamplingParams, StopReason, TokenLogprobs,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{Answer, Head};
use super::beams::{AskedSearch, BeamFields};
use super::body::Body;
use super::caller::Caller;
use super::chunks::{ChoiceWriter, ChunkSink, Chunks};
use super::error::ApiError;
use super::field_names::FieldNames;
use super::from_body::FromBody;
use super::logprobs::{ChatLogprobs, TokenForm};
use super::message::{ChatFinish, Message, MessageDelta};
use super::service::Service;
use super::streaming::{self, Streaming};
use super::tools::Reading;
use super::usage::Usage;
use super::{common, conversation, events, request_id, sampling};

pub(crate) async fn chat_completions(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let (asked, deadline): (Asked, _) = service.read(&caller, body).await?;
    let requests = common::requests(
        &asked.head.id,
        vec![asked.prompt],
        &asked.params,
        &asked.common,
        service.tenant(&caller),
    );
    let requests = requests.map(|request| Request { beam_search: asked.search.beams.clone(), ..request });
    let prepared = service.prepare((&caller, deadline), requests, asked.max_tokens).await;
    let prepared = prepared.map_err(|error| asked.names.translate(error))?;
    let names = asked.names;
    let reading = match prepared.requests.first().filter(|_| asked.reading.asks_for_prompt()) {
        Some(request) => {
            let end = service.engine.detokenize(end_of(request.prompt()).to_vec()).await?;
            asked.reading.with_prompt(&end)
        }
        None => asked.reading,
    };
    let form = Form {
        role: service.settings.response_role.clone(),
        echo: asked.echo,
        reading,
        shows_reasoning: asked.shows_reasoning,
        token_form: asked.token_form,
        is_search: asked.search.beams.is_some(),
    };
    let mut usage = prepared.usage().with_details(service.settings.enable_prompt_tokens_details);
    let head = asked.head;
    if let Some(streaming) = asked.streaming {
        let writer = Choices::new(form, asked.params.n as usize);
        return events::response(&service, prepared, Chunks::new(head, streaming, usage, names, writer));
    }
    let (mut streams, open) = prepared.start()?;
    let stream = streams.pop().expect("one prompt, one request");
    let output = open.within(stream.finish()).await.map_err(|error| names.translate(error))?;
    usage.whole(&output);
    open.generated(usage.completion_tokens);
    Ok(Json(form.completion(head, output, usage)).into_response())
}

/// As many tokens as say something of reasoning.
fn end_of(prompt: &[u32]) -> &[u32] {
    &prompt[prompt.len().saturating_sub(ReasoningPlace::MAX_TOKENS)..]
}

/// What a request asks for.
pub(crate) struct Asked {
    pub(crate) head: Head,
    pub(crate) prompt: Prompt,
    pub(crate) params: SamplingParams,
    pub(crate) names: FieldNames,
    /// A search in place of drawing.
    pub(crate) search: AskedSearch,
    /// What the client wrote itself.
    pub(crate) max_tokens: Option<u64>,
    reading: Reading,
    shows_reasoning: bool,
    token_form: TokenForm,
    /// What answers begin with: the final message, where it is continued and to be shown.
    echo: String,
    streaming: Option<Streaming>,
    common: common::CommonFields,
}

impl FromBody for Asked {
    fn take(service: &Service, caller: &Caller, body: &mut Body) -> Result<Self, ApiError> {
        let model = service.model_name(body.take_text("model")?)?;
        service.settings.reading.check(body)?;
        let (chat, tools) = conversation::take(body)?;
        let streaming = streaming::take(body, service.settings.includes_usage)?;
        let max_tokens = body.peek_count("max_completion_tokens").or_else(|| body.peek_count("max_tokens"));
        let beams = BeamFields::take(body)?;
        let (mut params, mut names) = sampling::of_chat(body, &service.engine.model().default_params)?;
        if streaming.is_some() && params.prompt_logprobs.is_some_and(|num| num != 0) {
            let message = "prompt_logprobs: expected none in a stream";
            return Err(ApiError::bad_field("prompt_logprobs", message));
        }
        let search = AskedSearch::of(beams, service, (&params, &mut names))?;
        body.leave(&search.without_effect);
        let reading = Reading::of(tools, service.settings.reading, (&mut params, &mut names))?;
        if search.beams.is_some() && !params.skip_special_tokens {
            let message = "calls in special tokens are not built beside use_beam_search: expected no tools";
            return Err(ApiError::not_built("tools", message));
        }
        let shows_reasoning = body.take_bool("include_reasoning")?.unwrap_or(true);
        let token_form = service.settings.token_form(body.take_bool("return_tokens_as_token_ids")?);
        let is_echoed = body.take_bool("echo")?.unwrap_or(false);
        let last =
            chat.messages.last().filter(|last| is_echoed && last.role == service.settings.response_role);
        let echo = last.and_then(|last| last.content.as_ref()).map(ToString::to_string).unwrap_or_default();
        let common = common::CommonFields::take(body)?;
        let id = request_id::of("chatcmpl", caller, common.request_id.clone());
        let object = if streaming.is_some() { "chat.completion.chunk" } else { "chat.completion" };
        let head = Head::new(id, object, model);
        let prompt = Prompt::Chat(chat);
        Ok(Self {
            head,
            prompt,
            params,
            names,
            search,
            max_tokens,
            reading,
            shows_reasoning,
            token_form,
            echo,
            streaming,
            common,
        })
    }
}

#[derive(Debug, Serialize)]
struct Completion {
    #[serde(flatten)]
    answer: Answer<Choice>,
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

/// A choice of a chunk.
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
    role: String,
    echo: String,
    reading: Reading,
    shows_reasoning: bool,
    token_form: TokenForm,
    /// Whether its outputs are those of a search: no text of it is certain before its end.
    is_search: bool,
}

impl Form {
    /// A piece, unless it is reasoning that is not wanted.
    fn shown(&self, delta: ChatDelta) -> Option<MessageDelta<'_>> {
        let is_hidden = !self.shows_reasoning && matches!(delta, ChatDelta::Reasoning(_));
        (!is_hidden).then(|| delta.into())
    }

    /// What tells the tokens that are shown, where not all of an output are.
    fn shown_tokens(&self) -> Option<AnswerTokens<TokenLogprobs>> {
        (!self.shows_reasoning).then(|| AnswerTokens::new(&self.reading.of_output()))
    }

    fn completion(&self, head: Head, output: RequestOutput, usage: Usage) -> Completion {
        let choices = output.outputs.into_iter().map(|one| self.choice(one)).collect();
        Completion {
            answer: Answer { head, choices, usage },
            prompt_logprobs: output.prompt_logprobs.as_deref().map(common::prompt_logprobs),
        }
    }

    fn choice(&self, output: CompletionOutput) -> Choice {
        let said = ChatParser::parse(self.reading.of_output(), &output.text);
        let said = ChatOutput { reasoning: said.reasoning.filter(|_| self.shows_reasoning), ..said };
        let has_called = self.reading.ends_to_call && !said.tool_calls.is_empty();
        let logprobs = output.logprobs.map(|tokens| shown(&mut self.shown_tokens(), tokens, true));
        Choice {
            index: output.index as usize,
            message: Message::new(&self.role, &self.echo, said),
            logprobs: logprobs.map(|tokens| ChatLogprobs::of(&tokens, self.token_form)),
            finish_reason: ChatFinish::of(output.finish_reason, has_called),
            stop_reason: output.stop_reason,
        }
    }
}

/// The tokens that are shown of those that have come, and of those that were kept back before.
fn shown(
    of_answer: &mut Option<AnswerTokens<TokenLogprobs>>,
    tokens: Vec<TokenLogprobs>,
    is_end: bool,
) -> Vec<TokenLogprobs> {
    let Some(of_answer) = of_answer else { return tokens };
    let mut shown = Vec::with_capacity(tokens.len());
    for token in tokens {
        shown.extend(of_answer.push(&token.token.token.clone(), token));
    }
    if is_end {
        shown.extend(of_answer.finish());
    }
    shown
}

/// Writes the choices of a stream.
struct Choices {
    form: Form,
    choices: Vec<OpenChoice>,
}

/// A choice of a stream.
struct OpenChoice {
    parser: ChatParser,
    shown_tokens: Option<AnswerTokens<TokenLogprobs>>,
    /// Whether its role was told.
    has_begun: bool,
}

impl Choices {
    fn new(form: Form, num_choices: usize) -> Self {
        let open = |_| OpenChoice {
            parser: ChatParser::new(form.reading.of_output()),
            shown_tokens: form.shown_tokens(),
            has_begun: false,
        };
        Self { choices: (0..num_choices).map(open).collect(), form }
    }
}

impl ChoiceWriter for Choices {
    const HAS_NULLS: bool = false;

    /// The first chunk of a choice says who speaks, and what is shown of the message that is continued.
    fn begin(&mut self, index: u32, chunks: &mut ChunkSink<'_>) {
        let index = index as usize;
        if !std::mem::replace(&mut self.choices[index].has_begun, true) {
            let delta = MessageDelta::first(&self.form.role, self.form.echo.clone());
            chunks.send(ChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None });
        }
    }

    fn delta(&mut self, _place: usize, delta: Delta, chunks: &mut ChunkSink<'_>) {
        let index = delta.index as usize;
        let OpenChoice { parser, shown_tokens, .. } = &mut self.choices[index];
        let is_end = delta.finish_reason.is_some();
        let mut said = parser.push(&delta.text);
        if is_end {
            said.extend(parser.finish());
        }
        let has_called = self.form.reading.ends_to_call && parser.num_tool_calls() > 0;
        let mut end =
            delta.finish_reason.map(|reason| (ChatFinish::of(reason, has_called), delta.stop_reason));
        let tokens = delta.logprobs.map(|tokens| shown(shown_tokens, tokens, is_end));
        let tokens = tokens.filter(|tokens| !tokens.is_empty());
        let mut logprobs = tokens.map(|tokens| ChatLogprobs::of(&tokens, self.form.token_form));
        let mut pieces: Vec<_> = said.into_iter().filter_map(|delta| self.form.shown(delta)).collect();
        if pieces.is_empty() && (is_end || logprobs.is_some()) {
            pieces.push(MessageDelta::content(String::new()));
        }
        let num_pieces = pieces.len();
        for (place, delta) in pieces.into_iter().enumerate() {
            // Log-probabilities come with the first piece of their tokens, the end with the last one.
            let end = if place + 1 == num_pieces { end.take() } else { None };
            let (finish_reason, stop_reason) =
                end.map_or((None, None), |(finish, stop)| (Some(finish), stop));
            let logprobs = logprobs.take();
            chunks.send(ChunkChoice { index, delta, logprobs, finish_reason, stop_reason });
        }
    }

    fn comes_whole(&self) -> bool {
        self.form.is_search
    }

    fn whole(&mut self, place: usize, output: &RequestOutput, chunks: &mut ChunkSink<'_>) {
        for one in &output.outputs {
            let delta = Delta {
                index: one.index,
                text: one.text.clone(),
                finish_reason: Some(one.finish_reason),
                stop_reason: one.stop_reason.clone(),
                ..Delta::default()
            };
            self.begin(one.index, chunks);
            self.delta(place, delta, chunks);
        }
    }
}
