//! Text on its way in and out: templates, tokens to characters, stop strings.

mod decoder;
mod stop;
mod strftime;
mod template;

pub(crate) use decoder::{Detokenizer, TextDecoder};
pub(crate) use stop::StopStrings;
pub(crate) use template::ChatTemplate;
