//! The life of a request: from text to tokens, through the steps of scheduler and executor, and back to text.
//!
//! This crate stands between those who ask (a program, the server) and what computes. Below it, the scheduler decides
//! who runs and the executor runs it; the two do not know each other, and the translation between them is here. It
//! names no backend and knows no protocol.
//!
//! ```
//! use quire_engine::{EngineConfig, EngineOptions, EngineParts, Llm, ModelFacts, SamplingParams};
//! use quire_executor::testing::ScriptedExecutor;
//!
//! // A model that counts: each token is its own position.
//! let capacity = ScriptedExecutor::small_capacity(64, 16);
//! let facts = ModelFacts { max_model_len: capacity.max_model_len };
//! let config = EngineConfig::resolve(EngineOptions::new("counting"), facts)?;
//! let executor = ScriptedExecutor::new(capacity, |_prompt, position| position as u32);
//!
//! let llm = Llm::start(EngineParts::new(config, Box::new(executor)))?;
//! let outputs = llm.generate([vec![70, 71, 72], vec![80]], &SamplingParams::greedy(4))?;
//! assert_eq!(outputs[0].outputs[0].token_ids, [3, 4, 5, 6]);
//! assert_eq!(outputs[1].outputs[0].token_ids, [1, 2, 3, 4]);
//! # Ok::<(), quire_engine::Error>(())
//! ```
//!
//! # A request's way through the files
//!
//! | file | what happens |
//! |---|---|
//! | `llm.rs`, `async_llm.rs` | takes a [`Request`], hands out its end or its [`RequestStream`] |
//! | `structured/` | compiles the form that an output is to have, beside all else |
//! | `frontend.rs` | checks it ([`SamplingParams::check`]), hashes; on the caller's thread |
//! | `renderer.rs` | writes conversations out and tokenizes; on the caller's thread |
//! | `core/inbox.rs` | carries it to the engine's thread, or says [`Error::Overloaded`] |
//! | `core/step.rs` | schedule, submit, collect, commit: in plain or in overlapped order |
//! | `core/batch.rs` | writes the scheduler's plan as the executor's batch |
//! | `core/results.rs` | feeds the executor's output to the requests, and makes the scheduler's results of it |
//! | `core/active.rs` | what one request has given: `text/` makes characters of tokens and looks for stop strings |
//! | `chat/` | what a text says: reasoning, answer, tool calls |
//! | `core/recovery.rs` | what is done when the device fails |
//!
//! # Invariants
//!
//! - What a user can get wrong is told before anything is queued. Of what is queued, every request gets one end.
//! - Text never holds half a character, nor the beginning of a stop string that may still be completed.
//! - A token is delivered once, whatever was computed again. What was computed past an end does not exist.
//! - A panic while one request is served ends that request. A failed step ends the requests that were part of it.
//! - Nobody who is gone can hold up the engine, and the engine's end holds up nobody.

mod async_llm;
mod background;
mod bad_words;
mod beam;
pub mod chat;
mod checked;
mod client;
mod clock;
mod config;
mod core;
mod distributions;
mod engine;
mod error;
mod event_sink;
mod explain;
mod fingerprint;
mod frontend;
mod histogram;
mod llm;
mod load;
mod logits_processors;
mod model_check;
mod output;
mod output_kind;
mod param_json;
mod params;
mod prepared_request;
mod progress;
mod prompt;
mod recording;
mod renderer;
mod report;
mod request;
mod request_stream;
mod seeds;
mod stats;
mod structured;
mod template_places;
mod text;
mod text_length;

pub use async_llm::AsyncLlm;
pub use beam::BeamSearchParams;
pub use checked::{CheckedParams, EosTokens, ParamLimits};
pub use client::{EngineClient, ModelInfo, RequestRoom};
pub use config::{
    Bytes, ConfigError, DTypeChoice, EngineConfig, EngineOptions, EngineValues, MaxLogprobs, MaxModelLen,
    ModelFacts, PreemptionMode, Setting, Source,
};
pub use distributions::Distributions;
pub use engine::EngineParts;
pub use error::{Error, ErrorKind, PromptError, Result};
pub use event_sink::{EventSink, RequestHandle};
pub use explain::{Explainer, RequestExplanation};
pub use fingerprint::Fingerprint;
pub use histogram::Histogram;
pub use llm::Llm;
pub use load::{EngineBuilder, EnginePlan, PoolDefault};
pub use logits_processors::LogitsProcessorCall;
pub use model_check::check_model;
pub use output::{
    CompletionOutput, Delta, FinishReason, RequestEvent, RequestMetrics, RequestOutput, StopReason,
    TokenLogprob, TokenLogprobs,
};
pub use output_kind::OutputKind;
pub use params::{ParamError, SamplingParams};
pub use prepared_request::PreparedRequest;
pub use prompt::{ChatMessage, ChatPrompt, ContentPart, MessageContent, Prompt};
pub use recording::write_recording;
pub use renderer::{PromptRenderer, RenderedPrompt};
pub use request::{Request, RequestId};
pub use request_stream::{EventSender, RequestStream};
pub use stats::EngineStats;
pub use structured::{Grammar, GrammarCompiler, GrammarError, GrammarState, StructuredOutputs};
