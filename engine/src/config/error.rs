//! Why a configuration was refused.

/// A setting that cannot be used, or a combination of settings.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value that is not allowed.
    #[error("{field} is {given}, expected {expected}")]
    Value {
        /// The setting.
        field: &'static str,
        /// Its value.
        given: String,
        /// What works.
        expected: String,
    },
    /// A setting that is right, for which there is no code yet.
    #[error("{field} = {given} is not built yet, expected {expected}")]
    NotBuilt {
        /// The setting.
        field: &'static str,
        /// Its value.
        given: String,
        /// What works today.
        expected: &'static str,
    },
    /// A setting that does not exist.
    #[error("{given} is not a setting")]
    Unknown {
        /// Its name.
        given: String,
    },
    /// The chat template is broken.
    #[error("the chat template cannot be used: {message}")]
    Template {
        /// What is wrong with it, and where.
        message: String,
    },
    /// No model was named.
    #[error("no model was given")]
    NoModel,
    /// A longer context than the model was made for.
    #[error(
        "max_model_len is {given}, the model was made for {model}: expected at most that, or allow_long_max_model_len"
    )]
    OverModelLen {
        /// The setting.
        given: usize,
        /// The model's own limit.
        model: usize,
    },
    /// A setting that the scheduler refuses.
    #[error(transparent)]
    Scheduler(#[from] quire_scheduler::ConfigError),
    /// A setting that the KV cache refuses.
    #[error(transparent)]
    KvCache(#[from] quire_kvcache::Error),
    /// A scheduling policy that nobody registered.
    #[error(transparent)]
    Policy(#[from] quire_scheduler::UnknownPolicy),
}
