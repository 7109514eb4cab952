//! The server as its clients see it.

mod chat;
mod completions;
mod connections;
mod errors;
mod metrics;
mod rig;
mod routes;
