//! Text of tokens that come one after the other.

use super::pieces::{Pieces, Token};
use super::rule::Strip;
use super::utf8::Utf8Stream;
use super::window::Window;
use crate::tokenizer::Tokenizer;

/// Which tokens show, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextOptions {
    /// Whether special tokens are left out.
    pub skip_special_tokens: bool,
    /// Whether an added token that follows another is set off by a space where the tokenizer puts spaces between
    /// tokens. Where special tokens are left out it makes no difference.
    pub spaces_between_special_tokens: bool,
}

impl Default for TextOptions {
    /// All tokens show, as the tokenizer's decoder has them.
    fn default() -> Self {
        Self { skip_special_tokens: false, spaces_between_special_tokens: true }
    }
}

/// Turns tokens into text as they come. Joined, the pieces are what [`Tokenizer::decode`] says of all tokens at once; no
/// piece ends inside a character, and U+FFFD stands only for bytes that no character can have.
///
/// A token outside of the vocabulary is nothing. A push is O(1) and allocates only where `text` has no room.
///
/// ```
/// use quire_models::testing::TinyTokenizer;
/// use quire_models::{TextOptions, TextStream, Tokenizer};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("tokenizer.json");
/// std::fs::write(&path, TinyTokenizer::json().to_string())?;
/// let tokenizer = Tokenizer::open(&path)?;
///
/// let mut stream = TextStream::new(TextOptions::default());
/// let mut pieces = Vec::new();
/// for byte in "é!".bytes() {
///     let mut piece = String::new();
///     stream.push(&tokenizer, TinyTokenizer::byte(byte), &mut piece);
///     pieces.push(piece);
/// }
/// assert_eq!(pieces, ["", "é", "!"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TextStream {
    options: TextOptions,
    utf8: Utf8Stream,
    /// Used where tokens cannot be looked at one by one.
    window: Window,
    /// What is still to be taken away at the beginning; none before the first token.
    to_strip: Option<usize>,
    last_is_added: bool,
}

impl TextStream {
    /// A text that begins with its first token.
    pub fn new(options: TextOptions) -> Self {
        Self {
            options,
            utf8: Utf8Stream::default(),
            window: Window::default(),
            to_strip: None,
            last_is_added: false,
        }
    }

    /// A text that continues another, of which `context` are the last tokens: a character that they begin is finished
    /// by it.
    pub fn after(tokenizer: &Tokenizer, context: &[u32], options: TextOptions) -> Self {
        let mut stream = Self::new(options);
        let mut before = String::new();
        context.iter().for_each(|&id| stream.push(tokenizer, id, &mut before));
        stream
    }

    /// Takes a token of `tokenizer`, always the same one; appends what is certain to be text now.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) {
        match tokenizer.pieces() {
            Some(pieces) => self.push_piece(tokenizer, pieces, id, text),
            None if !tokenizer.has_token(id) => {}
            None if self.options.skip_special_tokens && tokenizer.is_special(id) => {}
            None => self.window.push(tokenizer, id, text),
        }
    }

    /// The end: appends what was waiting for a continuation.
    pub fn flush(&mut self, tokenizer: &Tokenizer, text: &mut String) {
        self.utf8.flush(text);
        self.window.flush(tokenizer, text);
    }

    fn push_piece(&mut self, tokenizer: &Tokenizer, pieces: &Pieces, id: u32, text: &mut String) {
        let Some(token) = pieces.token(id) else { return };
        if self.options.skip_special_tokens && token.is_special {
            return;
        }
        let start = text.len();
        let is_first = self.to_strip.is_none();
        if is_first || self.is_set_on(token) {
            self.utf8.push(&pieces.first_bytes(tokenizer.inner(), id), text);
        } else {
            self.utf8.push(pieces.bytes(token), text);
        }
        self.last_is_added = token.is_added;
        let num_left = self.to_strip.get_or_insert(pieces.strip().map_or(0, |strip| strip.count));
        if *num_left > 0
            && let Some(strip) = pieces.strip()
        {
            *num_left = strip_front(text, start, Strip { count: *num_left, ..strip });
        }
    }

    /// Whether no space comes in front of an added token.
    fn is_set_on(&self, token: Token) -> bool {
        !self.options.spaces_between_special_tokens && self.last_is_added && token.is_added
    }
}

/// Takes characters away from `start` on; how many are still to be taken from what follows.
fn strip_front(text: &mut String, start: usize, strip: Strip) -> usize {
    let is_stripped = |c: &char| *c == strip.character;
    let num_taken = text[start..].chars().take(strip.count).take_while(is_stripped).count();
    let taken = start..start + num_taken * strip.character.len_utf8();
    let is_more = text.len() > taken.end;
    text.replace_range(taken, "");
    if is_more { 0 } else { strip.count - num_taken }
}
