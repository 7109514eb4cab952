//! What the answers of both APIs have in common.

use serde::Serialize;

use super::service::unix_time_s;
use super::usage::Usage;

/// The fields that an answer and all its chunks begin with.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    object: &'static str,
    created: u64,
    pub(crate) model: String,
}

impl Head {
    /// That of an answer which is given now.
    pub(crate) fn new(id: String, object: &'static str, model: String) -> Self {
        Self { id, object, created: unix_time_s(), model }
    }
}

/// An answer in one piece.
#[derive(Debug, Serialize)]
pub(crate) struct Answer<C> {
    #[serde(flatten)]
    pub(crate) head: Head,
    pub(crate) choices: Vec<C>,
    pub(crate) usage: Usage,
}
