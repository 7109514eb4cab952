//! Request life cycle: tokens and text, stop conditions, the engine loop, Llm and AsyncLlm.

mod async_llm;
mod checked;
mod client;
mod clock;
mod config;
mod core;
mod engine;
mod error;
mod frontend;
mod llm;
mod load;
mod output;
mod params;
mod progress;
mod prompt;
mod report;
mod request;
mod seeds;
mod stats;
mod text;

pub use async_llm::AsyncLlm;
pub use checked::{CheckedParams, EosTokens, ParamLimits};
pub use client::{EngineClient, EventSender, ModelInfo, RequestStream};
pub use config::{
    Bytes, ConfigError, DTypeChoice, EngineConfig, EngineOptions, EngineValues, MaxModelLen, ModelFacts,
    PreemptionMode, Setting, Source,
};
pub use engine::EngineParts;
pub use error::{Error, ErrorKind, PromptError, Result};
pub use llm::Llm;
pub use load::{EngineBuilder, EnginePlan, PoolDefault};
pub use output::{
    CompletionOutput, Delta, FinishReason, RequestEvent, RequestMetrics, RequestOutput, StopReason,
    TokenLogprob, TokenLogprobs,
};
pub use params::{ParamError, SamplingParams};
pub use prompt::{ChatMessage, ChatPrompt, ContentPart, MessageContent, Prompt};
pub use request::{Request, RequestId};
pub use stats::EngineStats;
