//! A value, and where it came from.

use std::fmt;

/// A value of the configuration and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nobody gave it.
    Default,
    /// The command line.
    Flag,
    /// An environment variable.
    Environment,
    /// A configuration file.
    File,
    /// The model's own files.
    Model,
    /// The program that embeds the engine.
    Caller,
    /// It was fitted to the memory there is.
    Memory,
    /// The kind of device decided.
    Device,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Model => "model",
            Self::Caller => "caller",
            Self::Memory => "memory",
            Self::Device => "device",
        })
    }
}
