//! Request life cycle: tokens and text, stop conditions, the engine loop, Llm and AsyncLlm.

mod client;
mod config;
mod error;
mod output;
mod params;
mod prompt;
mod request;
mod stats;

pub use client::{EngineClient, EventSender, ModelInfo, RequestStream};
pub use config::{
    Bytes, ConfigError, DTypeChoice, EngineConfig, EngineOptions, EngineValues, MaxModelLen, ModelFacts,
    PreemptionMode, Setting, Source,
};
pub use error::{Error, ErrorKind, PromptError, Result};
pub use output::{
    CompletionOutput, Delta, FinishReason, RequestEvent, RequestMetrics, RequestOutput, StopReason,
    TokenLogprob, TokenLogprobs,
};
pub use params::{ParamError, SamplingParams};
pub use prompt::{ChatMessage, ChatPrompt, ContentPart, MessageContent, Prompt};
pub use request::{Request, RequestId};
pub use stats::EngineStats;
