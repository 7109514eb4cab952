//! What can go wrong with a request, and with the engine.

use std::sync::Arc;

use crate::RequestId;
use crate::config::ConfigError;
use crate::params::ParamError;
use crate::structured::GrammarError;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of this crate. It can be cloned, since a failed step is told to every request that was part of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sampling parameter was refused.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The form that an output was to have cannot be enforced, or led nowhere.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A prompt was refused.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A request of a list was refused, and with it the list.
    #[error("request {index}")]
    InList {
        /// Its place, from 0.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: Box<Error>,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {given} is not in the vocabulary of {vocab_size} tokens")]
    TokenId {
        /// The id.
        given: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// Too many requests wait already. Try again later.
    #[error("{num_waiting} requests wait already, at most {max_num_waiting} may")]
    Overloaded {
        /// Requests that wait.
        num_waiting: usize,
        /// The limit.
        max_num_waiting: usize,
    },
    /// Too many requests with templates of their own wait already. Try again later.
    #[error("{max_num_waiting} requests with a chat_template of their own wait already, no more may")]
    TooManyTemplates {
        /// The limit.
        max_num_waiting: usize,
    },
    /// Code that served this one request panicked; others are not concerned.
    #[error("internal error: {what} panicked: {message}")]
    Panicked {
        /// What was being done.
        what: &'static str,
        /// What the panic said.
        message: String,
    },
    /// The device failed; the engine goes on, the requests that ran do not.
    #[error("the device failed")]
    Executor(#[source] quire_executor::ExecutorError),
    /// The model does not fit into the memory.
    #[error(transparent)]
    Memory(quire_executor::MemoryError),
    /// A model computed nothing that a token could be chosen from. Others in the same step are not concerned.
    #[error("request {request_id} has no next token")]
    Row {
        /// The request.
        request_id: RequestId,
        /// What is wrong, and at which position of its sequence.
        #[source]
        source: quire_executor::RowFault,
    },
    /// Of the tokens that a request's parameters leave, the model gave none a finite logit.
    #[error(
        "request {request_id} has no token left at position {position}: {} together forbid every token that the model offers",
        fields.join(", ")
    )]
    NoTokenLeft {
        /// The request.
        request_id: RequestId,
        /// Where the token would stand in its sequence.
        position: u32,
        /// The parameters that forbid tokens, at least one.
        fields: Vec<&'static str>,
    },
    /// The executor answered a step with something that does not belong to it: a bug of the executor.
    #[error("the output of step {step} cannot be used: {reason}")]
    StepOutput {
        /// Number of the step.
        step: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The scheduler and the engine disagree: a bug.
    #[error("internal error in scheduling")]
    Scheduler(#[from] quire_scheduler::Error),
    /// A beginning could not be pinned.
    #[error("the beginning cannot be pinned")]
    Pin(#[from] quire_kvcache::PinError),
    /// The model cannot be loaded.
    #[error("the model cannot be loaded")]
    Model(#[source] Arc<quire_models::Error>),
    /// The tokenizer that was given in place of the model's own cannot be used.
    #[error("the tokenizer cannot be used")]
    Tokenizer(#[source] Arc<quire_models::Error>),
    /// The engine has ended.
    #[error("the engine has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: Arc<str>,
    },
}

impl From<quire_models::Error> for Error {
    fn from(error: quire_models::Error) -> Self {
        Self::Model(Arc::new(error))
    }
}

impl From<quire_executor::ExecutorError> for Error {
    /// What an executor fails at while it is made is told as what it is.
    fn from(error: quire_executor::ExecutorError) -> Self {
        match error {
            quire_executor::ExecutorError::Load(error) => Self::Model(error),
            quire_executor::ExecutorError::Memory(error) => Self::Memory(error),
            error => Self::Executor(error),
        }
    }
}

/// Whose fault an error is, and what may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is wrong: change it.
    BadRequest,
    /// The request is right, this version cannot serve it.
    NotBuilt,
    /// Nothing is wrong: try again later.
    Overloaded,
    /// The engine failed.
    Internal,
    /// The engine has ended.
    Unavailable,
}

impl Error {
    pub(crate) fn stopped(reason: impl Into<Arc<str>>) -> Self {
        Self::Stopped { reason: reason.into() }
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Grammar(GrammarError::Tokenizer)
            | Self::Param(ParamError::NotBuilt { .. })
            | Self::Prompt(PromptError::ContentKind { .. }) => ErrorKind::NotBuilt,
            Self::Grammar(GrammarError::Stuck { .. }) => ErrorKind::Overloaded,
            Self::Grammar(_)
            | Self::Param(_)
            | Self::Prompt(_)
            | Self::TokenId { .. }
            | Self::NoTokenLeft { .. }
            | Self::Pin(_) => ErrorKind::BadRequest,
            Self::InList { source, .. } => source.kind(),
            Self::Overloaded { .. } | Self::TooManyTemplates { .. } => ErrorKind::Overloaded,
            Self::Stopped { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        }
    }

    /// The field of the request that is to be changed, where one is.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Param(error) => Some(error.field()),
            Self::Grammar(GrammarError::Invalid { field: "whitespace_pattern", .. }) => {
                Some("structured_outputs.whitespace_pattern")
            }
            Self::Grammar(_) => Some("structured_outputs"),
            Self::NoTokenLeft { fields, .. } => fields.first().copied(),
            Self::Prompt(
                PromptError::NoTemplate
                | PromptError::NoMessages
                | PromptError::FinalMessage
                | PromptError::Template { .. }
                | PromptError::ContentKind { .. }
                | PromptError::UnknownContent { .. }
                | PromptError::ContentText
                | PromptError::Arguments { .. },
            ) => Some("messages"),
            Self::Prompt(PromptError::RequestTemplate { .. }) => Some("chat_template"),
            Self::Prompt(PromptError::GenerationPrompt) => Some("add_generation_prompt"),
            Self::Prompt(_) | Self::TokenId { .. } => Some("prompt"),
            Self::InList { source, .. } => source.field(),
            _ => None,
        }
    }
}

/// Why a prompt cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// There is nothing to continue.
    #[error("the prompt is empty: expected at least one token")]
    Empty,
    /// Prompt and one token are longer than the context.
    #[error(
        "the prompt has {num_tokens} tokens, at most {} leave room for one token of output (max_model_len is {max_model_len})",
        max_model_len.saturating_sub(1)
    )]
    TooLong {
        /// Tokens of the prompt.
        num_tokens: usize,
        /// The limit on prompt and output together.
        max_model_len: usize,
    },
    /// A text so long that its tokens were not counted to the end.
    #[error(
        "the prompt of {num_bytes} bytes has more than twice the tokens that fit, at most {} leave room for one token of output (max_model_len is {max_model_len})",
        max_model_len.saturating_sub(1)
    )]
    TextTooLong {
        /// Bytes of the text.
        num_bytes: usize,
        /// The limit on prompt and output together.
        max_model_len: usize,
    },
    /// A text longer than those are that are tokenized whole.
    #[error("the text has {num_bytes} bytes: expected at most {max_bytes}, of which all tokens are counted")]
    TooManyBytes {
        /// Bytes of the text.
        num_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// Prompt and one token do not fit into the KV pool, even alone.
    #[error(
        "the prompt of {num_tokens} tokens and one more need {need} blocks of the kv cache, {have} present{}",
        set_aside(*pinnable)
    )]
    NeverFits {
        /// Tokens of the prompt.
        num_tokens: usize,
        /// Blocks needed.
        need: u32,
        /// Blocks that a prompt may have.
        have: u32,
        /// Blocks that none may have, since they are for pinned beginnings.
        pinnable: u32,
    },
    /// A token id that the vocabulary does not have.
    #[error("prompt token {index} is {given}, which is not in the vocabulary of {vocab_size} tokens")]
    TokenId {
        /// Its place in the prompt.
        index: usize,
        /// The id.
        given: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// A conversation for a model without a chat template.
    #[error("the model has no chat template: give a prompt, or a template")]
    NoTemplate,
    /// A conversation without messages.
    #[error("the conversation is empty: expected at least one message")]
    NoMessages,
    /// Two ways to end a conversation at once.
    #[error("add_generation_prompt and continue_final_message exclude each other")]
    GenerationPrompt,
    /// The template puts the last message in another form than it has, so its end is not found.
    #[error("the chat template changes the final message, which therefore cannot be continued")]
    FinalMessage,
    /// The template refused the conversation.
    #[error("the chat template refused the conversation: {message}")]
    Template {
        /// What the template said.
        message: String,
    },
    /// The template that came with the request is wrong, uses more than one may, or refused the conversation.
    #[error("chat_template: {message}")]
    RequestTemplate {
        /// What is wrong with it, or what it said.
        message: String,
    },
    /// A part of a message that is no text.
    #[error("message content of type {kind} is not built yet: expected text")]
    ContentKind {
        /// Its type.
        kind: String,
    },
    /// A part of a message of no known type.
    #[error("a part of a message has the type {kind:?}: expected text")]
    UnknownContent {
        /// Its type.
        kind: String,
    },
    /// A part of a message that is to be text and has none.
    #[error("a part of a message has the type text and no text: expected a string")]
    ContentText,
    /// Arguments of a call in the conversation that are no JSON.
    #[error(
        "messages[{message_idx}].tool_calls[{call_idx}].function.arguments: expected JSON, given {given:?}"
    )]
    Arguments {
        /// The place of the message.
        message_idx: usize,
        /// The place of the call in it.
        call_idx: usize,
        /// What is there.
        given: String,
    },
    /// A text for a model without a tokenizer.
    #[error("the model has no tokenizer: give token ids")]
    NoTokenizer,
    /// The tokenizer refused the text.
    #[error("the text cannot be tokenized: {message}")]
    Tokenizer {
        /// What it said.
        message: String,
    },
}

/// Blocks that prompts do not get.
fn set_aside(pinnable: u32) -> String {
    if pinnable == 0 { String::new() } else { format!(" beside {pinnable} set aside by max_pinned_bytes") }
}
