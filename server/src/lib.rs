//! Quire runs large language models: the keys and values of attention in pages, the batch rebuilt at every step.
//!
//! This crate stands on top of the picture. It finds and fetches models, names the backends, and is the command line;
//! everything else is in the crates below, each of which can be used alone. A program that embeds inference begins
//! with [`Llm`]:
//!
//! ```no_run
//! use quire::{Llm, SamplingParams};
//!
//! let llm = Llm::load("smollm2-135m")?;
//! let outputs = llm.generate(["The capital of France is"], &SamplingParams::greedy(24))?;
//! println!("{}", outputs[0].outputs[0].text);
//! # Ok::<(), quire::Error>(())
//! ```
//!
//! One that extends the command line with a policy, a backend or a model of its own begins with [`App`].
//!
//! # Invariants
//!
//! - Only this crate names a backend or knows the network.
//! - Results go to standard output, everything else to standard error.
//! - A file that was fetched has its name only once its content was checked.
//! - The environment is read once, here; the crates below get what they need as arguments.

mod api_server;
mod app;
mod backend;
mod cache;
mod cli;
mod env;
mod error;
mod http;
mod llm;
mod log_writer;
mod logging;
mod model_source;
mod otlp;
mod signal;
mod start;
mod trace;

pub use api_server::ApiServer;
pub use app::App;
pub use backend::{BackendError, BackendOptions, BackendRegistry, cpu_kernels, cuda_kernels};
pub use cli::input::{InputError, LineError, fuzz_request};
pub use error::{Error, Result};
pub use http::{CertificateError, CorsError};
pub use llm::Llm;
pub use logging::LogFilterError;
pub use model_source::{
    AnswerFault, Denial, HubId, HubIdError, KNOWN_MODELS, KnownModel, Lines, ModelSource, ResolvedModel,
    SourceError,
};

// The paved road: one dependency is enough to write a request, a policy, a kernel part or a model.
pub use quire_engine::{
    AsyncLlm, ChatMessage, EngineClient, EngineOptions, Prompt, Request, RequestEvent, RequestOutput,
    SamplingParams,
};
pub use quire_executor::{LogitsProcessor, LogitsProcessors, RowId, RowLogits};
pub use {
    quire_engine as engine, quire_kernels as kernels, quire_kernels_cpu as kernels_cpu,
    quire_models as models, quire_scheduler as scheduler,
};
