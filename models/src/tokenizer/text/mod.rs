//! Tokens to text: at once, or as they come. Both go the same way, so that both say the same.
//!
//! ```text
//! token id -> Pieces: its bytes -> Utf8Stream: whole characters -> what a rule strips from the beginning -> text
//! ```
//!
//! A decoder that looks further than that at a token's neighbours decodes a window of tokens, again and again.

mod pieces;
mod rule;
mod stream;
mod utf8;
mod window;

pub(super) use pieces::Pieces;
pub use stream::{TextOptions, TextStream};
