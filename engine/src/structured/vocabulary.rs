//! The tokens of a model as runs of bytes.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use quire_models::Tokenizer;

use super::error::GrammarError;

/// Begins what is no text: special tokens, and ids without a token.
const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The tokens as a tree of bytes. `vocab_size` is the model's, which may have more ids than the tokenizer.
///
/// Behind the model's tokens stands one more, which says that a text may end: which of the model's tokens end it is the
/// engine's affair. A text may be written in any tokens: in which, the model says.
pub(super) fn token_tree(tokenizer: &Tokenizer, vocab_size: usize) -> Result<TokEnv, GrammarError> {
    let end = vocab_size as u32;
    if (0..end).all(|id| tokenizer.token_bytes(id).is_none()) {
        return Err(GrammarError::Tokenizer);
    }
    let words = (0..end).map(|id| word(tokenizer, id));
    let words: Vec<Vec<u8>> = words.chain([special("<end>")]).collect();
    let info = TokRxInfo::new(end + 1, end);
    Ok(Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words))))
}

/// What a token says.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.token_bytes(id).filter(|_| !tokenizer.is_special(id)) {
        Some(bytes) => bytes.to_vec(),
        None => special(&tokenizer.inner().id_to_token(id).unwrap_or_else(|| format!("<[{id}]>"))),
    }
}

/// What stands in the tree for something that is no text.
fn special(name: &str) -> Vec<u8> {
    [&[MARKER], name.as_bytes()].concat()
}
