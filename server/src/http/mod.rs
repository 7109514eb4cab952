//! The HTTP server: OpenAI's API as vLLM serves it.
//!
//! A request's way: [`routes`] → [`body`] (a JSON object) → `completions` or `chat` (what is asked for; everything a
//! client can get wrong is refused here) → [`service`] (checked as a whole, then queued) → the engine → one JSON object
//! ([`answer`]), or [`events`] as they come ([`chunks`]), which a [`stream_writer`] writes and sends past HTTP where it can ([`wire`]). A dropped
//! connection drops the requests of its answer, which gives them up.

mod answer;
mod api;
mod auth;
mod beams;
mod body;
mod body_work;
mod caller;
mod chat;
mod chunks;
mod clocked;
mod common;
mod completions;
mod connection;
mod conversation;
mod cors;
mod deadline;
mod debug;
mod echo;
mod ending;
mod error;
mod event_buffer;
mod events;
mod field_names;
mod from_body;
mod head_faults;
mod host;
mod lent_body;
mod lifecycle;
mod limits;
pub(crate) mod listener;
mod live;
mod logprobs;
mod memory;
mod message;
mod metrics;
mod pace;
mod prompts;
mod render;
mod request_id;
mod response_counts;
pub(crate) mod routes;
mod sampling;
pub(crate) mod server;
mod service;
mod settings;
mod stall;
mod status;
mod stream_writer;
mod streaming;
mod text_place;
pub(crate) mod tls;
mod tokens;
pub(crate) mod tools;
mod usage;
pub(crate) mod watchdog;
mod wire;
mod wired_socket;
mod write_times;

#[cfg(test)]
mod tests;

pub use cors::CorsError;
pub(crate) use cors::CorsSettings;
pub(crate) use error::ErrorForm;
pub(crate) use limits::KeyLimits;
pub(crate) use server::Server;
pub(crate) use service::Service;
pub(crate) use settings::HttpSettings;
pub use tls::CertificateError;
pub(crate) use tls::CertificateFiles;
