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

/// Makes detokenizers, and texts of single tokens.
#[derive(Clone)]
pub(crate) struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    is_byte_level: bool,
}

impl TextDecoder {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let is_byte_level = matches!(tokenizer.inner().get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        Self { tokenizer, is_byte_level }
    }

    /// For an output that continues `prompt`.
    pub(crate) fn detokenizer(&self, prompt: &[u32], skip_special_tokens: bool) -> Box<dyn Detokenizer> {
        let context = &prompt[prompt.len().saturating_sub(NUM_CONTEXT)..];
        let tokenizer = Arc::clone(&self.tokenizer);
        match self.is_byte_level {
            true => Box::new(ByteLevelDetokenizer::new(tokenizer, context, skip_special_tokens)),
            false => Box::new(WindowDetokenizer::new(tokenizer, context, skip_special_tokens)),
        }
    }

    /// A token alone: parts of a character show as U+FFFD, special tokens as they are written.
    pub(crate) fn token_text(&self, token_id: u32) -> String {
        self.tokenizer.decode(&[token_id]).unwrap_or_default()
    }
}
