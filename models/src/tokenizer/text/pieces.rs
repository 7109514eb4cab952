//! The bytes of every token of a vocabulary.

use tokenizers::Model;

use super::rule::{Rule, Strip, byte_of};

/// What tokens stand for, in one run of memory: looked up in O(1), without an allocation.
#[derive(Debug)]
pub(in super::super) struct Pieces {
    rule: Rule,
    tokens: Vec<Token>,
    bytes: Vec<u8>,
}

/// A token of the table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Token {
    /// Where its bytes are, as a later token of a text.
    start: u32,
    end: u32,
    /// Whether there is such a token at all.
    exists: bool,
    pub(super) is_special: bool,
    pub(super) is_added: bool,
}

impl Pieces {
    /// The table of a tokenizer whose ids are below `num_ids`; none where its tokens cannot be looked at one by one. O(bytes of the vocabulary).
    pub(in super::super) fn of(tokenizer: &tokenizers::Tokenizer, num_ids: usize) -> Option<Self> {
        let rule = Rule::of(tokenizer.get_decoder())?;
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let (mut tokens, mut bytes) = (vec![Token::default(); num_ids], Vec::with_capacity(num_ids * 8));
        for (token, id) in tokens.iter_mut().zip(0..) {
            let Some(text) = tokenizer.id_to_token(id) else { continue };
            let added = added.get(&id);
            let start = offset(&bytes)?;
            let is_added = added.is_some() && !is_byte(tokenizer, id, &text);
            bytes.extend(rule.bytes(&text, is_added, false));
            *token = Token {
                start,
                end: offset(&bytes)?,
                exists: true,
                is_special: added.is_some_and(|added| added.special),
                is_added,
            };
        }
        Some(Self { rule, tokens, bytes })
    }

    /// A token, if there is one of that id.
    pub(super) fn token(&self, id: u32) -> Option<Token> {
        self.tokens.get(id as usize).copied().filter(|token| token.exists)
    }

    /// Its bytes within a text.
    pub(super) fn bytes(&self, token: Token) -> &[u8] {
        &self.bytes[token.start as usize..token.end as usize]
    }

    /// The bytes of a token that begins a text.
    pub(super) fn first_bytes(&self, tokenizer: &tokenizers::Tokenizer, id: u32) -> Vec<u8> {
        let is_added = self.token(id).is_some_and(|token| token.is_added);
        tokenizer.id_to_token(id).map_or_else(Vec::new, |token| self.rule.bytes(&token, is_added, true))
    }

    pub(super) fn strip(&self) -> Option<Strip> {
        self.rule.strip()
    }

    /// The bytes of a token wherever it stands in a text.
    pub(in super::super) fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        self.token(id).map(|token| self.bytes(token))
    }

    /// Whether a token is special.
    pub(in super::super) fn is_special(&self, id: u32) -> bool {
        self.token(id).is_some_and(|token| token.is_special)
    }
}

/// Whether an added token is one of the model's bytes too, and as such a part of characters: no text has a byte above 0xF4.
fn is_byte(tokenizer: &tokenizers::Tokenizer, id: u32, token: &str) -> bool {
    let mut chars = token.chars();
    let byte = chars.next().and_then(byte_of).filter(|_| chars.next().is_none());
    byte.is_some_and(|byte| !matches!(byte, 0xC0 | 0xC1 | 0xF5..))
        && tokenizer.get_model().token_to_id(token) == Some(id)
}

/// A vocabulary of more than 4 GiB has no table.
fn offset(bytes: &[u8]) -> Option<u32> {
    u32::try_from(bytes.len()).ok()
}
