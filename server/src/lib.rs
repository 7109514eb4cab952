//! Quire: facade, command line and server; the only crate that names kernel backends.

mod cache;
mod env;
mod model_source;

pub use model_source::{HubId, KNOWN_MODELS, KnownModel, Lines, ModelSource, ResolvedModel, SourceError};
