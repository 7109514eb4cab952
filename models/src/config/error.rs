//! What can be wrong with a configuration.

use std::fmt::Display;

/// Why a configuration is refused, with the field at fault under the name that its file has for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field that must be there is not.
    #[error("{field}: missing")]
    Missing {
        /// The field.
        field: String,
    },
    /// A field holds something of another kind.
    #[error("{field}: expected {expected}, given {given}")]
    Value {
        /// The field.
        field: String,
        /// What it should hold.
        expected: &'static str,
        /// What it holds, shortened.
        given: String,
    },
    /// A size or count of zero, or beyond reason.
    #[error("{field}: expected 1 to {max}, given {given}")]
    Size {
        /// The field.
        field: String,
        /// The value found.
        given: usize,
        /// The largest allowed.
        max: usize,
    },
    /// Query heads cannot be shared out over the KV heads.
    #[error("{field}: expected a multiple of {kv_field} = {num_kv_heads}, given {num_heads}")]
    HeadsNotDivisible {
        /// The field of the query heads.
        field: String,
        /// The field of the key and value heads.
        kv_field: String,
        /// Query heads.
        num_heads: usize,
        /// Key and value heads.
        num_kv_heads: usize,
    },
    /// No `head_dim`, and none follows.
    #[error(
        "{field}: missing, and {hidden_field} = {hidden_size} is no multiple of {heads_field} = {num_heads}"
    )]
    NoHeadDim {
        /// The field.
        field: String,
        /// The field of the residual stream's width.
        hidden_field: String,
        /// The field of the query heads.
        heads_field: String,
        /// Width of the residual stream.
        hidden_size: usize,
        /// Query heads.
        num_heads: usize,
    },
    /// Rotary embedding turns pairs.
    #[error("{field}: expected an even number, given {given}")]
    OddHeadDim {
        /// The field.
        field: String,
        /// The value found.
        given: usize,
    },
    /// A token id outside the vocabulary.
    #[error("{field}: {given} is not in the vocabulary of {vocab_size} tokens")]
    TokenId {
        /// The field.
        field: String,
        /// The id found.
        given: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A way of stretching rotary embeddings that is not built.
    #[error("{field}: {given:?} is not supported; known are {known}")]
    RopeScaling {
        /// The field.
        field: String,
        /// The kind found.
        given: String,
        /// The kinds supported.
        known: &'static str,
    },
    /// A feature of the model that is not built.
    #[error("{field}: {given} is not supported, expected {expected}")]
    Unsupported {
        /// The field.
        field: String,
        /// The value found.
        given: String,
        /// What would work.
        expected: String,
    },
    /// A quantization whose weights cannot be read.
    #[error("quantization_config.quant_method: {given:?} is not supported; known are {known}")]
    Quantization {
        /// The method found.
        given: String,
        /// What can be loaded.
        known: &'static str,
    },
    /// A GGUF file of an architecture without a mapping of its names.
    #[error("general.architecture: {given:?} is not supported; known are {known}")]
    GgufArchitecture {
        /// The architecture found.
        given: String,
        /// Those mapped.
        known: String,
    },
}

impl ConfigError {
    /// The fields that it is about: the one at fault first, then those that it does not fit.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        let (field, others) = match self {
            Self::Missing { field }
            | Self::Value { field, .. }
            | Self::Size { field, .. }
            | Self::OddHeadDim { field, .. }
            | Self::TokenId { field, .. }
            | Self::RopeScaling { field, .. }
            | Self::Unsupported { field, .. } => (field.as_str(), [None, None]),
            Self::HeadsNotDivisible { field, kv_field, .. } => (field.as_str(), [Some(kv_field), None]),
            Self::NoHeadDim { field, hidden_field, heads_field, .. } => {
                (field.as_str(), [Some(hidden_field), Some(heads_field)])
            }
            Self::Quantization { .. } => ("quantization_config.quant_method", [None, None]),
            Self::GgufArchitecture { .. } => ("general.architecture", [None, None]),
        };
        std::iter::once(field).chain(others.into_iter().flatten().map(String::as_str))
    }

    /// A value of the right kind outside its range.
    pub(crate) fn number(field: &str, expected: &'static str, given: impl Display) -> Self {
        Self::Value { field: field.to_owned(), expected, given: given.to_string() }
    }
}
