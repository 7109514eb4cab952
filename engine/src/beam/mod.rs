//! Beam search: the most probable continuations of a prompt, found by keeping several at every token.
//!
//! ```text
//! params     what is asked for, and what is allowed
//! search     the beams, their candidates, and which of them go on: knows nothing of sequences
//! ```
//!
//! `core/beams.rs` computes the beams: each is a sequence that shares the blocks of its beginning with the others.

mod params;
mod search;

pub use self::params::BeamSearchParams;
pub(crate) use self::params::CheckedBeams;
pub(crate) use self::search::{BeamSearch, Found, Successor};
