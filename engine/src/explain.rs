//! What requests wait for, in words.

use std::fmt;

use quire_scheduler::{Explanation, SeqStatus, WaitReason};

use crate::core::Inbox;
use crate::{RequestId, Result};

/// What one output of a request is doing, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestExplanation {
    /// The request.
    pub request_id: RequestId,
    /// Which of its outputs.
    pub index: u32,
    /// What the scheduler says of it.
    pub explanation: Explanation,
    /// The request at the head of its queue, where others come first.
    pub behind: Option<RequestId>,
}

impl fmt::Display for RequestExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { status, age, waiting, waits_for } = &self.explanation;
        write!(f, "request {}", self.request_id)?;
        if self.index > 0 {
            write!(f, " output {}", self.index)?;
        }
        match status {
            SeqStatus::Running => write!(f, " runs, came {:.1} s ago", age.as_secs_f64())?,
            SeqStatus::Swapped => write!(f, " waits on the host for {:.1} s", waiting.as_secs_f64())?,
            _ => write!(f, " waits for {:.1} s", waiting.as_secs_f64())?,
        }
        match waits_for {
            Some(WaitReason::Refused(refusal)) => write!(f, ": {refusal}"),
            Some(WaitReason::Held(reason)) => write!(f, ": {reason}"),
            Some(WaitReason::NextStep) => f.write_str(": it is next"),
            Some(WaitReason::Full { limit }) => {
                write!(f, ": it is the next of its queue, and {limit} sequences run, as many as may")
            }
            Some(WaitReason::Behind { head, place }) => match &self.behind {
                Some(head) => write!(f, ": {place} of its queue come first, {head} the first of them"),
                None => write!(f, ": {place} of its queue come first, sequence {head} the first of them"),
            },
            _ => Ok(()),
        }
    }
}

/// Asks a running engine what its requests wait for. It does not keep the engine running.
#[derive(Clone)]
pub struct Explainer(pub(crate) Inbox);

impl Explainer {
    /// What every output that has not ended is doing, requests in the order of their arrival. Waits for the engine's
    /// thread, which answers between two steps.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`](crate::Error::Stopped).
    pub fn explain_all(&self) -> Result<Vec<RequestExplanation>> {
        self.0.explain_all()
    }
}

impl fmt::Debug for Explainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explainer").finish_non_exhaustive()
    }
}
