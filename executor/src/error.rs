//! What an executor can fail at.

/// A failure of a step or of a device.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// A kernel failed.
    #[error("step {step} failed")]
    Step {
        /// Number of the step.
        step: u64,
        /// What happened.
        #[source]
        source: quire_kernels::Error,
    },
    /// An earlier step failed, and this one with it.
    #[error("step {step} was dropped after an earlier step failed")]
    Dropped {
        /// Number of the step.
        step: u64,
    },
    /// More steps were submitted than may be open.
    #[error("{open} steps are open, at most {max_in_flight} may be")]
    TooManyInFlight {
        /// Open steps.
        open: usize,
        /// The limit.
        max_in_flight: usize,
    },
    /// The worker's thread has ended.
    #[error("the worker has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
    /// A part that has its place but is not there yet.
    #[error("{what} are not built yet")]
    NotBuilt {
        /// What was asked for.
        what: &'static str,
    },
}
