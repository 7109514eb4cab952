//! What the stream of a request brings before its end.

use serde::{Deserialize, Serialize};

/// What the events of a request bring. The end brings all there is, whatever the kind.
///
/// vLLM brings all so far by default; here a stream brings pieces unless it is asked otherwise, since what is joined at
/// the reader's side costs no time that grows with the square of the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// All of an output so far, again and again: [`RequestEvent::SoFar`](crate::RequestEvent::SoFar).
    Cumulative,
    /// What is new of an output: [`RequestEvent::Delta`](crate::RequestEvent::Delta).
    #[default]
    Delta,
    /// Nothing but the end.
    FinalOnly,
}
