//! What a check looks at.

use crate::checkpoint::LoadOptions;

/// How much of the weights is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Depth {
    /// None: headers, configuration and texts only.
    Headers,
    /// A few places of every tensor.
    #[default]
    Samples,
    /// All of them.
    Full,
}

/// What a check looks at.
#[derive(Debug, Clone, Default)]
pub struct CheckOptions {
    /// How the model would be loaded.
    pub load: LoadOptions,
    /// How much of the weights is read.
    pub depth: Depth,
    /// What is done with the model's own tokenizer.
    pub tokenizer: CheckTokenizer,
}

/// What a check does with a model's own tokenizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CheckTokenizer {
    /// It is opened and compared with the model.
    #[default]
    Always,
    /// The same where something else is wrong, so that all is told at once; whoever loads a model that is sound so far asks
    /// [`tokenizer`](fn@super::tokenizer).
    WithProblems,
    /// It is left alone: another one is given.
    Never,
}
