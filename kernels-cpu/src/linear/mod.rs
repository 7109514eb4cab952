//! Linear layers.

pub(crate) mod activation;
