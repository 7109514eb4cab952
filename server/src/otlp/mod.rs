//! Traces for a collector of OpenTelemetry: a span for each request, and one in it for each of its stages.
//!
//! Built with the feature `otlp` alone. What is known of a request is known at its end, so its spans are made then, with the
//! times that they had: nothing is done for a token.

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod spans;
#[cfg(all(test, feature = "otlp"))]
mod tests;

use crate::error::Result;

#[cfg(feature = "otlp")]
pub(crate) use self::exporter::Exporter;

/// There is none: this build has no traces.
#[cfg(not(feature = "otlp"))]
pub(crate) enum Exporter {}

#[cfg(not(feature = "otlp"))]
impl Exporter {
    /// # Errors
    ///
    /// Always, with how to build it.
    pub(crate) fn start(_endpoint: &str, _service: &str) -> Result<Self> {
        Err(crate::error::Error::NotCompiled { flag: "--otlp-traces-endpoint", feature: "otlp" })
    }

    /// Traces no engine.
    pub(crate) fn trace<E>(&self, _engine: E) -> E {
        match *self {}
    }
}

/// Starts what sends traces to `endpoint`, if there is one.
///
/// # Errors
///
/// What is wrong with the address; a build without traces.
pub(crate) fn start(endpoint: Option<&str>, service: &str) -> Result<Option<Exporter>> {
    endpoint.map(|endpoint| Exporter::start(endpoint, service)).transpose()
}
