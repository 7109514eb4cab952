//! The server as its clients see it.

mod api;
mod behind;
mod chat;
mod combinations;
mod completions;
mod connections;
mod deploy;
mod echo;
mod endings;
mod errors;
mod known_failures;
mod limits;
mod load;
mod metrics;
mod offsets;
mod prompts;
mod rig;
mod routes;
mod secured;
mod vllm_fields;
