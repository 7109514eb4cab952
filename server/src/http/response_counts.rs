//! How many answers had which status.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use parking_lot::Mutex;

/// Answers whose head was written, by status. A client that leaves before that has none.
#[derive(Debug, Default)]
pub(crate) struct ResponseCounts(Mutex<BTreeMap<StatusCode, u64>>);

impl ResponseCounts {
    /// Counts one.
    pub(crate) fn note(&self, status: StatusCode) {
        *self.0.lock().entry(status).or_default() += 1;
    }

    /// All that were counted.
    pub(crate) fn all(&self) -> BTreeMap<StatusCode, u64> {
        self.0.lock().clone()
    }
}
