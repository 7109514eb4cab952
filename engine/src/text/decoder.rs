//! From tokens to text, one request at a time.

use std::sync::Arc;

use quire_models::Tokenizer;
use tokenizers::DecoderWrapper;

use super::byte_level::ByteLevelDetokenizer;
use super::window::WindowDetokenizer;

/// Tokens of the prompt that a text may depend on.
const NUM_CONTEXT: usize = 5;

/// Turns the tokens of one output into text, as they come. Joined, the pieces are the text; none ends inside a
/// character. A token outside of the vocabulary is nothing.
pub(crate) trait Detokenizer: Send {
    /// Takes a token; what is certain to be text now.
    fn push(&mut self, token_id: u32) -> String;

    /// The end: what was waiting for a continuation.
    fn flush(&mut self) -> String;
}

/// Makes detokenizers, and texts of single tokens. Without a tokenizer there is no text.
#[derive(Clone)]
pub(crate) struct TextDecoder {
    tokenizer: Option<Arc<Tokenizer>>,
    is_byte_level: bool,
}

impl TextDecoder {
    pub(crate) fn new(tokenizer: Option<Arc<Tokenizer>>) -> Self {
        let decoder = tokenizer.as_ref().and_then(|tokenizer| tokenizer.inner().get_decoder());
        let is_byte_level = matches!(decoder, Some(DecoderWrapper::ByteLevel(_)));
        Self { tokenizer, is_byte_level }
    }

    pub(crate) fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_deref()
    }

    /// For an output that continues `prompt`.
    pub(crate) fn detokenizer(&self, prompt: &[u32], skip_special_tokens: bool) -> Box<dyn Detokenizer> {
        let context = &prompt[prompt.len().saturating_sub(NUM_CONTEXT)..];
        let Some(tokenizer) = self.tokenizer.clone() else { return Box::new(NoText) };
        match self.is_byte_level {
            true => Box::new(ByteLevelDetokenizer::new(tokenizer, context, skip_special_tokens)),
            false => Box::new(WindowDetokenizer::new(tokenizer, context, skip_special_tokens)),
        }
    }

    /// A token alone: parts of a character show as U+FFFD, special tokens as they are written.
    pub(crate) fn token_text(&self, token_id: u32) -> String {
        let text = self.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(&[token_id]));
        text.and_then(Result::ok).unwrap_or_default()
    }
}

/// The detokenizer of a model without a tokenizer.
struct NoText;

impl Detokenizer for NoText {
    fn push(&mut self, _token_id: u32) -> String {
        String::new()
    }

    fn flush(&mut self) -> String {
        String::new()
    }
}
