use std::sync::Arc;

use super::Linear;
use crate::{Result, StepCtx, Tensor};

/// Bytes that stay as they are, and where they are, for as long as somebody has them: a window of a mapped file, say.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A matrix whose rows are looked up: the embedding of a model. What [`LinearKernels::pack_table`] makes is never multiplied;
/// a [`Linear`] is a table too, for models whose head is their embedding.
///
/// [`LinearKernels::pack_table`]: super::LinearKernels::pack_table
pub trait EmbeddingTable: Send + Sync {
    /// Memory that the matrix takes, whoever it belongs to.
    fn num_bytes(&self) -> usize;

    /// The kernel that serves it.
    fn kernel(&self) -> String;

    /// `out[t] = W[ids[t]]`, as [`Linear::embed`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn embed(&self, ctx: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()>;
}

impl EmbeddingTable for Arc<dyn Linear> {
    fn num_bytes(&self) -> usize {
        Linear::num_bytes(self.as_ref())
    }

    fn kernel(&self) -> String {
        Linear::kernel(self.as_ref())
    }

    fn embed(&self, ctx: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        Linear::embed(self.as_ref(), ctx, ids, out)
    }
}
