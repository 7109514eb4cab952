//! A model that may not be sound.

use super::Checkpoint;

/// A model as far as it could be opened.
pub(crate) struct Surveyed {
    pub(crate) checkpoint: Checkpoint,
    /// Whether its configuration is what its files say: where not, they have told why, and it is good for nothing but to be
    /// looked at.
    pub(crate) config_is_sound: bool,
    /// Whether there is a single tensor, or nothing has told why there is none.
    pub(crate) has_tensors: bool,
}
