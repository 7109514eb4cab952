//! Whether a tokenizer that opens can be used.

use super::{EncodeOptions, SpecialTokens, Tokenizer, TokenizerError};
use crate::caught::caught;

/// Texts of several kinds: a tokenizer made for one of them is as good as any.
const TEXTS: [&str; 6] = ["Hello, world", "a", "1", " ", "\u{4f60}\u{597d}", "\u{3b1}"];

impl Tokenizer {
    /// Encodes a few texts as requests would be, with what the model puts around them; they need an embedding of `num_rows`
    /// rows.
    ///
    /// # Errors
    /// [`TokenizerError::Broken`], [`TokenizerError::Encode`] or [`TokenizerError::NoIds`] where that cannot be done with any
    /// of them; [`TokenizerError::TokenId`] where an id has no row.
    pub(crate) fn probe(&self, num_rows: usize) -> Result<(), TokenizerError> {
        self.probe_frame(num_rows)?;
        let mut faults = Vec::new();
        for text in TEXTS {
            match self.try_encode(text, false) {
                Ok(ids) if !ids.is_empty() => return check_ids("a text", &ids, num_rows),
                Ok(_) => faults.push(TokenizerError::NoIds { text }),
                Err(fault) => faults.push(fault),
            }
        }
        Err(faults.swap_remove(0))
    }

    /// What is put around a text is the same whatever the text is.
    fn probe_frame(&self, num_rows: usize) -> Result<(), TokenizerError> {
        let ids = self.try_encode("", true)?;
        check_ids("the frame of a text (post_processor)", &ids, num_rows)
    }

    fn try_encode(&self, text: &'static str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let options = EncodeOptions { add_special_tokens, special_tokens: SpecialTokens::Recognized };
        caught(|| self.encode(text, options)).unwrap_or(Err(TokenizerError::Broken { text }))
    }
}

fn check_ids(what: &str, ids: &[u32], num_rows: usize) -> Result<(), TokenizerError> {
    match ids.iter().find(|id| **id as usize >= num_rows) {
        Some(&id) => {
            Err(TokenizerError::TokenId { key: what.to_owned(), given: id.into(), num_tokens: num_rows })
        }
        None => Ok(()),
    }
}
