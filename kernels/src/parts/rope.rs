use super::Part;
use crate::{Result, StepCtx, Tensor};

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `i` with `i + rotary_dim / 2` (GPT-NeoX, and every Hugging Face Llama).
    Halves,
    /// Element `2i` with `2i + 1` (GPT-J).
    Interleaved,
}

/// Cosines and sines by position, computed once at load.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// `[max_positions, rotary_dim]` F32: the cosines of a position, `rotary_dim / 2` of them, then its sines.
    pub cos_sin: Tensor,
    /// Which elements form a pair.
    pub style: RopeStyle,
}

impl RopeTable {
    /// Elements of a head that are rotated; the rest is left as it is.
    pub fn rotary_dim(&self) -> usize {
        self.cos_sin.num_columns()
    }
}

/// Rotary position embedding (Su et al., 2021).
pub trait RopeKernels: Part {
    /// Rotates every head of `x`, `[num_tokens, num_heads * head_dim]` in the activation dtype, in place.
    /// `positions` is `[num_tokens]` I32 within the table.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn rope(
        &self,
        ctx: &mut StepCtx,
        x: &Tensor,
        head_dim: usize,
        positions: &Tensor,
        table: &RopeTable,
    ) -> Result<()>;
}
