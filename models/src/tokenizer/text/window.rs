//! Text of tokens for any decoder: a window of tokens is decoded with and without the newest.

use crate::caught::caught;
use crate::tokenizer::Tokenizer;

/// Turns tokens into text by decoding the last few together, for decoders that look at neighbours in ways of their own.
///
/// ```text
///    context: in the text already │ waiting: no whole character yet
///    ├────────── window ──────────┴───────────────────────────────┤
/// ```
///
/// Such a decoder may stand for a character that is not whole by U+FFFD. So text that ends with one waits, however long.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    ids: Vec<u32>,
    /// How many tokens of the window are context.
    num_context: usize,
}

impl Window {
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) {
        self.ids.push(id);
        let news = self.news(tokenizer);
        if !news.is_empty() && !news.ends_with(char::REPLACEMENT_CHARACTER) {
            text.push_str(&news);
            self.slide();
        }
    }

    pub(super) fn flush(&mut self, tokenizer: &Tokenizer, text: &mut String) {
        text.push_str(&self.news(tokenizer));
        self.slide();
    }

    /// What the window says beyond its context.
    fn news(&self, tokenizer: &Tokenizer) -> String {
        let all = decode(tokenizer, &self.ids);
        let context = decode(tokenizer, &self.ids[..self.num_context]);
        let common = all.char_indices().zip(context.chars()).find(|((_, new), old)| new != old);
        let start = common.map_or(context.len().min(all.len()), |((at, _), _)| at);
        all[start..].to_owned()
    }

    /// The tokens that waited are context now, those before them are not needed any more.
    fn slide(&mut self) {
        self.ids.drain(..self.num_context);
        self.num_context = self.ids.len();
    }
}

/// The library's own decoding. A part of a text that it cannot decode alone, or panics at, says nothing yet: such as one
/// space, of which both ends are to be taken away.
fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    if ids.is_empty() {
        return String::new();
    }
    caught(|| tokenizer.inner().decode(ids, false)).and_then(Result::ok).unwrap_or_default()
}
