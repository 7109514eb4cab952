//! Why a recording cannot be used.

use crate::error::UnknownPolicy;

/// What is wrong with a recording.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file is something else.
    #[error("not a recording: it does not begin with the letters QUIREREC")]
    NotARecording,
    /// The file is of another version of the format.
    #[error("the recording is of format version {found}, this program reads version {known}")]
    Version {
        /// The file's version.
        found: u16,
        /// The version that this crate reads.
        known: u16,
    },
    /// The file ends too early, or holds other bytes than were written.
    #[error("the recording is torn: at byte {at} of {len} {what}")]
    Torn {
        /// The place.
        at: usize,
        /// The length of the file.
        len: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// The header cannot be read.
    #[error("the recording's header: {reason}")]
    Header {
        /// What the reader met.
        reason: String,
    },
    /// The beginning has been overwritten, so that the state it started from is not known.
    #[error(
        "the beginning of the recording was overwritten ({dropped_bytes} bytes) and it holds no checkpoint: it can be \
         shown, drawn, fitted and simulated, not replayed"
    )]
    NoBeginning {
        /// Bytes that are gone.
        dropped_bytes: u64,
    },
    /// A checkpoint cannot be used: it was written by another program, or for another policy.
    #[error("the checkpoint before step {} is no state of this scheduler and policy", step + 1)]
    BadCheckpoint {
        /// The last step planned before it.
        step: u64,
    },
    /// The recorded policy is not known here.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The recorded limits or pool cannot be used.
    #[error("the recorded configuration: {reason}")]
    Config {
        /// What is wrong with it.
        reason: String,
    },
    /// The replay came to another decision.
    #[error("step {step}: the replay decides otherwise than the recording")]
    Diverged {
        /// The first step whose decisions differ.
        step: u64,
    },
    /// The header tells of other steps than were recorded.
    #[error("the header says that {header} steps were planned, the recorded calls plan {replayed}")]
    NumSteps {
        /// Steps by the header.
        header: u64,
        /// Steps by the calls.
        replayed: u64,
    },
    /// A call of the recording is refused by the replay.
    #[error("step {step}: the replay refuses a recorded call: {reason}")]
    Refused {
        /// The last step planned before it.
        step: u64,
        /// Why.
        reason: String,
    },
    /// The recording holds no requests from which a load could be made.
    #[error("the recording holds no request from its arrival to its end")]
    NoRequests,
}
