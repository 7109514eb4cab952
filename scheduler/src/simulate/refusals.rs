//! Requests that could never run, and why.

use std::mem::{Discriminant, discriminant};

use serde::Serialize;

use crate::error::AddError;

/// Requests that were refused for one kind of reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Refused {
    /// How many there are.
    pub num_requests: u64,
    /// The first of them, by its place in the trace.
    pub first_request: usize,
    /// Why that was refused, with its numbers.
    pub reason: String,
}

/// Counts by the kind of reason, of which there are few.
#[derive(Default)]
pub(super) struct Refusals {
    kinds: Vec<(Discriminant<AddError>, Refused)>,
}

impl Refusals {
    pub(super) fn note(&mut self, request: usize, error: &AddError) {
        let kind = discriminant(error);
        match self.kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, refused)) => refused.num_requests += 1,
            None => {
                let refused = Refused { num_requests: 1, first_request: request, reason: error.to_string() };
                self.kinds.push((kind, refused));
            }
        }
    }

    pub(super) fn num_requests(&self) -> u64 {
        self.kinds.iter().map(|(_, refused)| refused.num_requests).sum()
    }

    /// In the order of the first of each.
    pub(super) fn into_vec(self) -> Vec<Refused> {
        self.kinds.into_iter().map(|(_, refused)| refused).collect()
    }
}
