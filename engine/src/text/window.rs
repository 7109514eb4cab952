//! Detokenizing for any vocabulary: a window of tokens is decoded with and without the newest.

use std::sync::Arc;

use quire_models::Tokenizer;

use super::Detokenizer;

/// Tokens that may wait for others before they become text. A character has at most 4 bytes, so more wait in vain.
const MAX_WAITING: usize = 8;

/// Turns tokens into text by decoding the last few together, since some decoders look at neighbours (a leading space
/// is dropped at the very beginning only; bytes of a character are joined).
///
/// ```text
///    context: in the text already │ waiting: no whole character yet
///    ├────────── window ──────────┴───────────────────────────────┤
/// ```
pub(super) struct WindowDetokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    window: Vec<u32>,
    /// How many tokens of the window are context.
    num_context: usize,
}

impl WindowDetokenizer {
    /// `context` are the last tokens before the text.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, context: &[u32], skip_special_tokens: bool) -> Self {
        Self { tokenizer, skip_special_tokens, window: context.to_vec(), num_context: context.len() }
    }

    /// A window that no decoder accepts shows as nothing.
    fn decode(&self, ids: &[u32]) -> String {
        match self.skip_special_tokens {
            true => self.tokenizer.decode_plain(ids),
            false => self.tokenizer.decode(ids),
        }
        .unwrap_or_default()
    }

    /// What the window says beyond its context.
    fn news(&self) -> String {
        let all = self.decode(&self.window);
        let context = self.decode(&self.window[..self.num_context]);
        let common = all.char_indices().zip(context.chars()).find(|((_, new), old)| new != old);
        let start = common.map_or(context.len().min(all.len()), |((at, _), _)| at);
        all[start..].to_owned()
    }

    /// The tokens that waited are context now, those before them are not needed any more.
    fn slide(&mut self) {
        self.window.drain(..self.num_context);
        self.num_context = self.window.len();
    }
}

impl Detokenizer for WindowDetokenizer {
    fn push(&mut self, token_id: u32) -> String {
        if self.tokenizer.inner().id_to_token(token_id).is_none()
            || (self.skip_special_tokens && self.tokenizer.is_special(token_id))
        {
            return String::new();
        }
        self.window.push(token_id);
        let news = self.news();
        let is_whole = !news.is_empty() && !news.ends_with(char::REPLACEMENT_CHARACTER);
        if is_whole || self.window.len() - self.num_context >= MAX_WAITING {
            self.slide();
            return news;
        }
        String::new()
    }

    fn flush(&mut self) -> String {
        let news = self.news();
        self.slide();
        news
    }
}
