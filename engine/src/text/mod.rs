//! Text on its way in and out: templates, tokens to characters, stop strings.

mod byte_level;
mod decoder;
mod stop;
mod strftime;
mod template;
mod utf8;
mod window;

pub(crate) use decoder::{Detokenizer, TextDecoder};
pub(crate) use stop::{StopOutcome, StopStrings};
pub(crate) use template::ChatTemplate;
