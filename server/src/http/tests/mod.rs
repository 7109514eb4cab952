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
mod heads;
mod known_failures;
mod last_connections;
mod limits;
mod load;
mod metrics;
mod offsets;
mod prompts;
mod rig;
mod routes;
mod secured;
mod unread;
mod vllm_fields;
