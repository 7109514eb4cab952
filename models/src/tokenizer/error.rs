//! What can be wrong with a tokenizer.

use serde_json::Value;

use crate::json::shortened;

/// Why a tokenizer cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A folder without the file.
    #[error("{file} is not there")]
    NoFile {
        /// The file's name.
        file: &'static str,
    },
    /// A field holds something of another form.
    #[error("{field}: expected {expected}, given {given}")]
    Form {
        /// The field, and where in it.
        field: String,
        /// What it should hold.
        expected: &'static str,
        /// What it holds, shortened.
        given: String,
    },
    /// The file's content is refused.
    #[error("{file} is not a valid tokenizer")]
    Invalid {
        /// The file's name.
        file: &'static str,
        /// Why.
        #[source]
        source: tokenizers::Error,
    },
    /// The file's content contradicts itself so badly that reading it failed.
    #[error("{file} contradicts itself: its merges do not fit its vocabulary")]
    Inconsistent {
        /// The file's name.
        file: &'static str,
    },
    /// Every text ends in a panic of the library that reads it.
    #[error(
        "it contradicts itself: encoding {text:?} ends in the midst of it, as where a frame names a token that there is not"
    )]
    Broken {
        /// The text that was tried.
        text: &'static str,
    },
    /// No text has ids.
    #[error("it has no ids for any of the texts that were tried, such as {text:?}")]
    NoIds {
        /// One of them.
        text: &'static str,
    },
    /// A GGUF file without a tokenizer.
    #[error("{key}: missing")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// A kind of tokenizer that cannot be rebuilt from metadata.
    #[error(
        "tokenizer.ggml.model: {given:?} is not supported; known are gpt2 (byte-level bpe), llama (sentencepiece), bert (wordpiece)"
    )]
    Model {
        /// The kind found.
        given: String,
    },
    /// A way of splitting text that is not known.
    #[error("tokenizer.ggml.pre: {given:?} is not supported; known are {known}")]
    PreTokenizer {
        /// The name found.
        given: String,
        /// The names known.
        known: String,
    },
    /// A list that should have an entry for every token.
    #[error("{key}: expected {expected} entries, given {given}")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Entries found.
        given: usize,
    },
    /// A merge that is not two tokens, or whose result is no token.
    #[error("tokenizer.ggml.merges: {given:?} does not join two tokens to a third")]
    Merge {
        /// The merge found.
        given: String,
    },
    /// A token id outside the vocabulary.
    #[error("{key}: {given} is not in the vocabulary of {num_tokens} tokens")]
    TokenId {
        /// The metadata key.
        key: String,
        /// The id found.
        given: u64,
        /// Tokens there are.
        num_tokens: usize,
    },
    /// Parts that do not fit together.
    #[error("the tokenizer cannot be put together")]
    Build(#[source] tokenizers::Error),
    /// A text that has no ids.
    #[error("the text cannot be encoded")]
    Encode(#[source] tokenizers::Error),
}

impl TokenizerError {
    /// A field that holds something of another form, or nothing.
    pub(super) fn form(field: &str, expected: &'static str, given: Option<&Value>) -> Self {
        let given = given.map_or_else(|| "nothing".to_owned(), shortened);
        Self::Form { field: field.to_owned(), expected, given }
    }
}
