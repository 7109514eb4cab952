//! The configuration: given in pieces, resolved once, immutable from then on.

mod device;
mod error;
pub(crate) mod generation_override;
mod options;
mod resolve;
mod setting;
mod value;

pub use error::ConfigError;
pub use options::{EngineConfig, EngineOptions, EngineValues};
pub use resolve::ModelFacts;
pub use setting::{Setting, Source};
pub use value::{Bytes, DTypeChoice, MaxLogprobs, MaxModelLen, PreemptionMode};

pub(crate) use value::SettingValue;
