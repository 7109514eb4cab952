//! Structured output: text that a JSON schema, a regular expression or a grammar describes.
//!
//! ```text
//!  StructuredOutputs ──check──► GrammarSource ──GrammarCompiler──► Grammar ──start──► GrammarState
//!  what a user writes           what is compiled,   threads of its own,   shared by     one an output: says what may
//!                               and its cache key   a cache               its requests  follow, takes what did
//! ```

mod compiler;
mod error;
mod grammar;
mod lark;
mod params;
mod pattern;
mod schema;
mod source;
mod special;
mod tags;
#[cfg(test)]
mod tests;
mod thought;
mod vocabulary;

pub use compiler::GrammarCompiler;
pub(crate) use compiler::GrammarTicket;
pub use error::GrammarError;
pub use grammar::{Grammar, GrammarState};
pub use params::StructuredOutputs;
pub(crate) use source::GrammarSource;
pub(crate) use thought::Thought;
