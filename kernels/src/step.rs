//! The metadata of a step: which tokens belong to which row, and where their keys and values lie.

use crate::{DType, Result, StepCtx, Tensor};

/// Everything that the launch shapes of a step may depend on. What is not in here changes from step to step
/// and therefore lies in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeKey {
    /// Tokens computed, padding included.
    pub num_tokens: usize,
    /// Rows (sequences), padding included.
    pub num_rows: usize,
    /// The most tokens that one row computes; 1 in a pure decode step.
    pub max_query_len: usize,
    /// Rows of logits asked for.
    pub num_logits: usize,
}

/// The limits that memory is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Most rows in a step.
    pub max_num_seqs: usize,
    /// Most tokens of a sequence.
    pub max_model_len: usize,
    /// Tokens a block.
    pub block_size: usize,
}

impl Limits {
    /// Blocks that the longest sequence needs: the width of a block table.
    pub fn max_blocks_per_row(&self) -> usize {
        self.max_model_len.div_ceil(self.block_size)
    }
}

/// The metadata of one step on the host: what [`AttentionKernels::plan`](crate::AttentionKernels::plan) reads.
///
/// Row `r` computes the tokens `query_start[r]..query_start[r + 1]` of the flat input; with them its cache holds
/// `seq_lens[r]` tokens, so the first of them stands at position `seq_lens[r] - query_len(r)`. A padded row has
/// a `seq_len` of 0, and its output is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepRows {
    /// `[num_rows + 1]`, ascending from 0.
    pub query_start: Vec<i32>,
    /// `[num_rows]`.
    pub seq_lens: Vec<i32>,
}

impl StepRows {
    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.seq_lens.len()
    }

    /// Number of tokens computed.
    pub fn num_tokens(&self) -> usize {
        self.query_start.last().map_or(0, |&n| n as usize)
    }

    /// Tokens that row `r` computes.
    pub fn query_len(&self, r: usize) -> usize {
        (self.query_start[r + 1] - self.query_start[r]) as usize
    }

    /// The most tokens that one row computes.
    pub fn max_query_len(&self) -> usize {
        (0..self.num_rows()).map(|r| self.query_len(r)).max().unwrap_or(0)
    }
}

/// Step metadata at fixed device addresses, allocated once for the largest step.
#[derive(Clone, Debug)]
pub struct StepBuffers {
    /// `[max_num_batched_tokens]` I32.
    pub token_ids: Tensor,
    /// `[max_num_batched_tokens]` I32.
    pub positions: Tensor,
    /// `[max_num_batched_tokens]` I32: `block * block_size + offset`; -1 is not written.
    pub slot_mapping: Tensor,
    /// `[max_num_seqs + 1]` I32.
    pub query_start: Tensor,
    /// `[max_num_seqs]` I32.
    pub seq_lens: Tensor,
    /// `[max_num_seqs, max_blocks_per_row]` I32.
    pub block_tables: Tensor,
    /// `[max_num_batched_tokens]` I32: which tokens' hidden states become logits.
    pub logits_idx: Tensor,
}

impl StepBuffers {
    /// Bytes that [`new`](Self::new) allocates.
    pub fn num_bytes(limits: &Limits) -> usize {
        let tokens = limits.max_num_batched_tokens;
        let rows = limits.max_num_seqs;
        4 * (4 * tokens + 2 * rows + 1 + rows * limits.max_blocks_per_row())
    }

    /// Buffers for steps within `limits`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(device: &dyn crate::Device, limits: &Limits) -> Result<Self> {
        let alloc = |dims: &[usize]| -> Result<Tensor> {
            let num_bytes = 4 * dims.iter().product::<usize>();
            Ok(Tensor::new(device.allocate(num_bytes)?, 0, DType::I32, dims))
        };
        let (tokens, rows) = (limits.max_num_batched_tokens, limits.max_num_seqs);
        Ok(Self {
            token_ids: alloc(&[tokens])?,
            positions: alloc(&[tokens])?,
            slot_mapping: alloc(&[tokens])?,
            query_start: alloc(&[rows + 1])?,
            seq_lens: alloc(&[rows])?,
            block_tables: alloc(&[rows, limits.max_blocks_per_row()])?,
            logits_idx: alloc(&[tokens])?,
        })
    }

    /// The views that a step of this shape sees. The same key gives the same addresses.
    pub fn view(&self, key: ShapeKey) -> StepView {
        StepView {
            token_ids: self.token_ids.rows(0, key.num_tokens),
            positions: self.positions.rows(0, key.num_tokens),
            slot_mapping: self.slot_mapping.rows(0, key.num_tokens),
            query_start: self.query_start.rows(0, key.num_rows + 1),
            seq_lens: self.seq_lens.rows(0, key.num_rows),
            block_tables: self.block_tables.rows(0, key.num_rows),
            logits_idx: self.logits_idx.rows(0, key.num_logits),
            key,
        }
    }
}

/// The metadata of a step as kernels see it: views of [`StepBuffers`], cut to the step's shapes.
#[derive(Clone, Debug)]
pub struct StepView {
    /// The shapes.
    pub key: ShapeKey,
    /// `[num_tokens]` I32.
    pub token_ids: Tensor,
    /// `[num_tokens]` I32.
    pub positions: Tensor,
    /// `[num_tokens]` I32: `block * block_size + offset`; -1 is not written.
    pub slot_mapping: Tensor,
    /// `[num_rows + 1]` I32.
    pub query_start: Tensor,
    /// `[num_rows]` I32.
    pub seq_lens: Tensor,
    /// `[num_rows, max_blocks_per_row]` I32.
    pub block_tables: Tensor,
    /// `[num_logits]` I32.
    pub logits_idx: Tensor,
}

/// Writes `values` to the head of `buffer`.
///
/// # Errors
///
/// As [`StepCtx::write`].
pub fn write_head(ctx: &mut StepCtx, buffer: &Tensor, values: &[i32]) -> Result<()> {
    ctx.write(&buffer.rows(0, values.len()), values)
}
