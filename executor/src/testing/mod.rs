//! Executors for tests.

mod cache_model;
mod scripted;

pub use scripted::{Script, ScriptControl, ScriptedExecutor};
