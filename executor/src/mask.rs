//! Which tokens a row may choose.

use quire_kernels::mask_words;
use serde::{Deserialize, Serialize};

use crate::RowId;

/// A set of tokens: a bit a token, 32 to a word, least significant first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// No token of a vocabulary.
    pub fn none(vocab_size: usize) -> Self {
        Self { words: vec![0; mask_words(vocab_size)] }
    }

    /// Every token of a vocabulary.
    pub fn all(vocab_size: usize) -> Self {
        Self { words: vec![u32::MAX; mask_words(vocab_size)] }
    }

    /// These tokens of a vocabulary; ids past its end are left out.
    pub fn of(vocab_size: usize, token_ids: impl IntoIterator<Item = u32>) -> Self {
        let mut mask = Self::none(vocab_size);
        token_ids.into_iter().for_each(|id| mask.allow(id));
        mask
    }

    /// A mask of these words.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Its words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether no token is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether a token is in it.
    pub fn allows(&self, token_id: u32) -> bool {
        self.words.get(token_id as usize / 32).is_some_and(|word| word >> (token_id % 32) & 1 == 1)
    }

    /// Puts a token in; one past the end of the vocabulary is left out.
    pub fn allow(&mut self, token_id: u32) {
        if let Some(word) = self.words.get_mut(token_id as usize / 32) {
            *word |= 1 << (token_id % 32);
        }
    }

    /// Takes a token out.
    pub fn forbid(&mut self, token_id: u32) {
        if let Some(word) = self.words.get_mut(token_id as usize / 32) {
            *word &= !(1 << (token_id % 32));
        }
    }

    /// Keeps what is in the other mask of the same vocabulary too.
    pub fn intersect(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }
}

/// What a gated row may choose in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowMask {
    /// These tokens.
    Only(TokenMask),
    /// All tokens but these, which are few.
    AllBut(Vec<u32>),
}

impl RowMask {
    /// Whether a token may be chosen.
    pub fn allows(&self, token_id: u32) -> bool {
        match self {
            Self::Only(mask) => mask.allows(token_id),
            Self::AllBut(forbidden) => !forbidden.contains(&token_id),
        }
    }
}

/// What the gated rows of one step may choose. A row that is not listed may choose any token: its result will not be
/// looked at, or nothing is forbidden to it this time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenMasks {
    /// By row, each at most once.
    pub rows: Vec<(RowId, RowMask)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_holds_what_was_put_in() {
        let mut mask = TokenMask::of(40, [0, 31, 32, 39, 39, 4000]);
        assert_eq!(mask.words(), [0x8000_0001, 0x81]);
        mask.forbid(31);
        mask.forbid(5000);
        assert_eq!((0..80).filter(|&id| mask.allows(id)).collect::<Vec<_>>(), [0, 32, 39]);
        mask.intersect(&TokenMask::of(40, [39, 1]));
        assert_eq!(mask, TokenMask::of(40, [39]));
        assert!(TokenMask::all(33).allows(32));
    }
}
