//! Why a form for an output cannot be used.

/// A grammar that cannot be compiled, or went too far.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// What was given cannot be compiled.
    #[error("structured_outputs.{field} cannot be used: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// More text than is worth compiling.
    #[error("structured_outputs.{field} has {num_bytes} bytes, at most {max_bytes} are compiled")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        num_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// More nested or referenced parts than are worth compiling.
    #[error("structured_outputs.{field} has {given} {what}, at most {max} are compiled")]
    TooManyParts {
        /// The field.
        field: &'static str,
        /// Of what.
        what: &'static str,
        /// How many there are.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// It takes too long.
    #[error("structured_outputs.{field} took more than {limit_ms} ms to compile")]
    TooSlow {
        /// The field.
        field: &'static str,
        /// The limit.
        limit_ms: u64,
    },
    /// Too many compilations never came to an end.
    #[error("{given} compilations of grammars hang, so that no other is started")]
    Stuck {
        /// How many.
        given: usize,
    },
    /// While it was used, what may follow became too much to compute, or it came to a place where nothing may.
    #[error("structured_outputs.{field} cannot go on after {num_tokens} tokens: {reason}")]
    NoWayOn {
        /// The field.
        field: &'static str,
        /// Tokens of output so far.
        num_tokens: usize,
        /// Why.
        reason: String,
    },
    /// The model has no tokenizer: nobody knows what its tokens say.
    #[error("the model has no tokenizer: the form of its output cannot be enforced")]
    NoTokenizer,
    /// Tokens that are put together by other rules than one after the other.
    #[error("a tokenizer of this kind is not built yet for structured output")]
    Tokenizer,
}
