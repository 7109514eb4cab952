//! What can be refused, and why.

use crate::group::KvGroupKind;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A configuration that cannot be used, or a part that is not there.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of the configuration is out of its range.
    #[error("{field} is {given}, expected {expected}")]
    OutOfRange {
        /// The field of [`KvCacheConfig`](crate::KvCacheConfig).
        field: &'static str,
        /// Its value.
        given: String,
        /// The values that work.
        expected: String,
    },
    /// The model's layers form several groups; tables per group are not built.
    #[error("{given} kv groups given, this version keeps exactly one")]
    SeveralGroups {
        /// How many were given.
        given: usize,
    },
    /// A kind of group that is not built.
    #[error("kv group kind {0:?} is not built")]
    GroupKind(KvGroupKind),
}

/// Blocks do not suffice now. Nothing has changed; ask again after a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{need} blocks needed, {available} available, {retiring} to come with open steps and transfers")]
pub struct NoBlocks {
    /// Blocks that the request would take, with the room it has to leave.
    pub need: u32,
    /// Blocks that could be taken now: free, or cached and unreferenced.
    pub available: u32,
    /// Blocks that become available when the open steps have been committed and the open transfers are done.
    pub retiring: u32,
}

/// A broken invariant of the bookkeeping: a bug of this crate or of its caller.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// The three kinds of blocks do not add up to the pool.
    #[error("{free} free + {live} live + {cached} cached blocks are not {total}")]
    Conservation {
        /// Blocks without content.
        free: u32,
        /// Blocks that a table or an open step holds.
        live: u32,
        /// Blocks kept for their content alone.
        cached: u32,
        /// Blocks of the pool.
        total: u32,
    },
    /// A block's count differs from the tables that hold it.
    #[error("block {block} counts {counted} references, {found} tables hold it")]
    References {
        /// The block.
        block: u32,
        /// Its reference count.
        counted: u32,
        /// The tables found to hold it.
        found: u32,
    },
    /// A block without holders is in neither list, or a held one is in a list.
    #[error("block {block} is in the wrong list")]
    WrongList {
        /// The block.
        block: u32,
    },
}
