//! Executors for tests.

mod cache_model;
mod scripted;

pub use scripted::{NO_TOKEN, Script, ScriptControl, ScriptedExecutor};
