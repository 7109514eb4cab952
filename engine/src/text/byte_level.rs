//! Detokenizing for byte-level vocabularies: every token is a run of bytes, whatever stands around it.

use std::sync::Arc;

use quire_models::Tokenizer;

use super::Detokenizer;
use super::utf8::Utf8Stream;

/// Turns tokens of a byte-level vocabulary into text. O(1) a token.
pub(super) struct ByteLevelDetokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    stream: Utf8Stream,
}

impl ByteLevelDetokenizer {
    /// `context` are the last tokens before the text: a character that they begin is finished by it.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, context: &[u32], skip_special_tokens: bool) -> Self {
        let mut this = Self { tokenizer, skip_special_tokens, stream: Utf8Stream::default() };
        context.iter().for_each(|&id| drop(this.push(id)));
        this
    }
}

impl Detokenizer for ByteLevelDetokenizer {
    fn push(&mut self, token_id: u32) -> String {
        let mut text = String::new();
        if self.skip_special_tokens && self.tokenizer.is_special(token_id) {
            return text;
        }
        if let Some(token) = self.tokenizer.inner().id_to_token(token_id) {
            self.stream.push(&token_bytes(&token), &mut text);
        }
        text
    }

    fn flush(&mut self) -> String {
        let mut text = String::new();
        self.stream.flush(&mut text);
        text
    }
}

/// The bytes that a token of the vocabulary stands for. A token with a character outside of the byte alphabet is an
/// added one, written as it is.
fn token_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The inverse of the byte alphabet of GPT-2 (Radford et al. 2019, `bytes_to_unicode`): printable characters of
/// Latin-1 stand for themselves, the other bytes in ascending order for the characters from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        let mut bytes: Vec<u8> = (0..=0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(token_bytes("Ġcafé"), [b" caf", &[0xE9][..]].concat());
        assert_eq!(token_bytes("\u{120}\u{121}"), [0x20, 0x7F]);
        assert_eq!(token_bytes("<｜end｜>"), "<｜end｜>".as_bytes());
    }
}
