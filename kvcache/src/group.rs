//! KV groups: layers that share a block table.

/// What the layers of a group keep of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KvGroupKind {
    /// Keys and values of every token.
    Full,
    /// Keys and values of the last so many tokens.
    Window(u32),
    /// One compressed vector a token.
    Latent {
        /// Elements of the compressed vector.
        rank: u32,
        /// Elements of the rotary part beside it.
        rope_dim: u32,
    },
    /// A state of fixed size, whatever the length.
    State {
        /// Its size.
        bytes: u64,
    },
}

/// The layers of a model that keep the same kind of state, and so share block tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvGroup {
    /// What these layers keep.
    pub kind: KvGroupKind,
    /// Bytes of one block over all layers of the group; for reports, this crate holds no memory.
    pub block_bytes: u64,
}

impl Default for KvGroup {
    fn default() -> Self {
        Self { kind: KvGroupKind::Full, block_bytes: 0 }
    }
}
