//! What the engine asks a step to do: a difference to the step before, as plain data.

use serde::{Deserialize, Serialize};

/// A place among the rows that a device keeps state for: `0..max_num_seqs`. The engine hands them out; a row
/// keeps its place while its sequence runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowId(pub u32);

/// One step, as a difference: rows that came, rows that went, and what the rows of this step compute.
///
/// The runner applies the fields in the order in which they stand here. It holds no pointers, so remote ranks
/// get the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepBatch {
    /// Number of the step, ascending.
    pub step: u64,
    /// Rows whose sequences ended or were preempted since the last step. Their state is dropped.
    pub released: Vec<RowId>,
    /// Blocks that go to the host or come back, behind all steps before this one. Their places on either side are
    /// nobody's until [`StepOutput::transfers_done`](crate::StepOutput::transfers_done) names the transfer.
    pub transfers: Vec<BlockTransfer>,
    /// Rows that start, or start again after a preemption.
    pub added: Vec<AddedRow>,
    /// Block copies to do before anything else of this step (copy-on-write), in every layer: (from, to).
    pub block_copies: Vec<(u32, u32)>,
    /// What is computed, at most one entry a row. A step without any ends when all transfers so far are done.
    pub rows: Vec<PlannedRow>,
}

impl StepBatch {
    /// Tokens that the step computes.
    pub fn num_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.num_tokens as usize).sum()
    }

    /// Whether any row's choice waits for a mask.
    pub fn is_gated(&self) -> bool {
        self.rows.iter().any(|row| row.gated)
    }
}

/// Blocks that change sides, in every layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockTransfer {
    /// Its name, given once.
    pub id: u64,
    /// Where it goes.
    pub direction: SwapDirection,
    /// (block of the pool, block of the swap space).
    pub blocks: Vec<(u32, u32)>,
}

/// Where blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwapDirection {
    /// From the pool to the host.
    Out,
    /// From the host to the pool.
    In,
}

/// A row that starts: all that the device must know about its sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddedRow {
    /// Its place.
    pub row: RowId,
    /// Raised by each preemption of the sequence; comes back with its results.
    pub epoch: u32,
    /// Prompt, then what was generated before a preemption.
    pub token_ids: Vec<u32>,
    /// How many of them are the prompt (penalties and `min_tokens` tell the two apart).
    pub num_prompt_tokens: u32,
    /// How many of them lie in the cache already (a prefix cache hit). At least one is left to compute.
    pub num_computed_tokens: u32,
    /// The blocks so far, in order.
    pub block_table: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: RowSampling,
}

/// What one row computes in this step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedRow {
    /// Which row.
    pub row: RowId,
    /// Its epoch.
    pub epoch: u32,
    /// Tokens to compute, from the row's computed ones on. A token that the host has not seen yet (sampled by a
    /// step still open) is read on the device.
    pub num_tokens: u32,
    /// How many of them are guesses to be verified. Speculation is not built: must be 0.
    pub num_draft_tokens: u32,
    /// Places of the row's table that hold another block from this step on, because a shared block got a copy
    /// ([`StepBatch::block_copies`]): (place in the table, block).
    pub replaced_blocks: Vec<(u32, u32)>,
    /// Blocks appended to the row's table before the step.
    pub new_blocks: Vec<u32>,
    /// Whether a token is sampled after the last one; false for a chunk that leaves part of the prompt.
    pub sample: bool,
    /// Whether the choice waits for [`Executor::provide_masks`](crate::Executor::provide_masks), since what is allowed
    /// hangs on a token that was not known when the step was submitted. Only a row that samples can be gated.
    pub gated: bool,
}

/// How the tokens of a row are chosen. Values were checked when the request came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowSampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// In (0, 1]; 1 is off.
    pub top_p: f32,
    /// In [0, 1]; 0 is off.
    pub min_p: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// The request's seed.
    pub seed: u64,
    /// Index of the sequence in its request; another index draws other numbers.
    pub sequence_index: u32,
    /// Output tokens before which [`end_token_ids`](Self::end_token_ids) are forbidden.
    pub min_tokens: u32,
    /// End and stop tokens, for `min_tokens`.
    pub end_token_ids: Vec<u32>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be chosen; none is all.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// The logits processors that the row asks for, each once.
    pub processors: Vec<ProcessorCall>,
    /// How many of the best log-probabilities come back with each sampled token (0: only its own).
    pub logprobs: Option<u32>,
    /// The same for every prompt token but the first.
    pub prompt_logprobs: Option<u32>,
}

/// A row's wish for a [`LogitsProcessor`](crate::LogitsProcessor).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessorCall {
    /// Its place among those that the device has.
    pub processor: u32,
    /// What it is told.
    pub args: serde_json::Value,
}

impl Default for RowSampling {
    /// Greedy, nothing else.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            sequence_index: 0,
            min_tokens: 0,
            end_token_ids: Vec::new(),
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            processors: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

impl RowSampling {
    /// Whether the row's logits are changed by what it generated.
    pub fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }
}
