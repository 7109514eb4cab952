//! What the device keeps of each row: sampling parameters, penalty counts, the token sampled last.

use quire_kernels::{DType, Device, IN_PROMPT, Result, SamplingState, StepCtx, Tensor};

use crate::row::Row;
use crate::{RowId, RowSampling};

/// The state of all row places, with a copy of the parameters on the host: a step with new rows sends them anew.
#[derive(Debug)]
pub(super) struct RowState {
    pub(super) device: SamplingState,
    /// `[max_num_seqs]` I32.
    pub(super) last_sampled: Tensor,
    edits: Vec<RowEdits>,
    columns: Columns,
    changed: bool,
    vocab_size: usize,
}

/// The parameters, by row place.
#[derive(Debug)]
struct Columns {
    temperature: Vec<f32>,
    top_k: Vec<i32>,
    top_p: Vec<f32>,
    min_p: Vec<f32>,
    presence_penalty: Vec<f32>,
    frequency_penalty: Vec<f32>,
    repetition_penalty: Vec<f32>,
    keys: Vec<[u32; 3]>,
}

/// What is added to a row's logits; each token once.
#[derive(Clone, Debug, Default)]
pub(super) struct RowEdits {
    bias: Vec<(u32, f32)>,
    end_tokens: Vec<u32>,
}

impl RowState {
    /// Bytes that [`new`](Self::new) allocates.
    pub(super) fn num_bytes(max_num_seqs: usize, vocab_size: usize) -> usize {
        SamplingState::num_bytes(max_num_seqs, vocab_size) + 4 * max_num_seqs
    }

    pub(super) fn new(device: &dyn Device, max_num_seqs: usize, vocab_size: usize) -> Result<Self> {
        let last_sampled = Tensor::new(device.allocate(4 * max_num_seqs)?, 0, DType::I32, &[max_num_seqs]);
        Ok(Self {
            device: SamplingState::new(device, max_num_seqs, vocab_size)?,
            last_sampled,
            edits: vec![RowEdits::default(); max_num_seqs],
            columns: Columns::new(max_num_seqs),
            changed: false,
            vocab_size,
        })
    }

    /// A row starts, or starts again: its counts are those of its ids, whatever was generated or replayed.
    pub(super) fn add(&mut self, ctx: &mut StepCtx, id: RowId, row: &Row) -> Result<()> {
        let slot = id.0 as usize;
        self.columns.set(slot, &row.sampling);
        self.edits[slot] = RowEdits::new(&row.sampling);
        self.changed = true;
        if !row.sampling.has_penalties() {
            return Ok(());
        }
        let counts = token_counts(row.known_ids(), row.num_prompt_tokens, self.vocab_size);
        ctx.write(&self.device.counts.rows(slot, slot + 1), &counts)
    }

    /// Enqueues the transfer of the parameters where rows were added.
    pub(super) fn send(&mut self, ctx: &mut StepCtx) -> Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let (columns, device) = (&self.columns, &self.device);
        ctx.write(&device.temperature, &columns.temperature)?;
        ctx.write(&device.top_k, &columns.top_k)?;
        ctx.write(&device.top_p, &columns.top_p)?;
        ctx.write(&device.min_p, &columns.min_p)?;
        ctx.write(&device.presence_penalty, &columns.presence_penalty)?;
        ctx.write(&device.frequency_penalty, &columns.frequency_penalty)?;
        ctx.write(&device.repetition_penalty, &columns.repetition_penalty)?;
        ctx.write(&device.keys, &columns.keys)
    }

    pub(super) fn edits(&self, row: RowId) -> &RowEdits {
        &self.edits[row.0 as usize]
    }
}

impl Columns {
    fn new(max_num_seqs: usize) -> Self {
        let mut columns = Self {
            temperature: vec![0.0; max_num_seqs],
            top_k: vec![0; max_num_seqs],
            top_p: vec![0.0; max_num_seqs],
            min_p: vec![0.0; max_num_seqs],
            presence_penalty: vec![0.0; max_num_seqs],
            frequency_penalty: vec![0.0; max_num_seqs],
            repetition_penalty: vec![0.0; max_num_seqs],
            keys: vec![[0; 3]; max_num_seqs],
        };
        (0..max_num_seqs).for_each(|slot| columns.set(slot, &RowSampling::default()));
        columns
    }

    fn set(&mut self, slot: usize, sampling: &RowSampling) {
        self.temperature[slot] = sampling.temperature;
        self.top_k[slot] = i32::try_from(sampling.top_k).unwrap_or(i32::MAX);
        self.top_p[slot] = sampling.top_p;
        self.min_p[slot] = sampling.min_p;
        self.presence_penalty[slot] = sampling.presence_penalty;
        self.frequency_penalty[slot] = sampling.frequency_penalty;
        self.repetition_penalty[slot] = sampling.repetition_penalty;
        self.keys[slot] = [sampling.seed as u32, (sampling.seed >> 32) as u32, sampling.sequence_index];
    }
}

impl RowEdits {
    fn new(sampling: &RowSampling) -> Self {
        let mut bias = sampling.logit_bias.clone();
        bias.sort_by_key(|&(token, _)| token);
        bias.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0.0 };
            same
        });
        let mut end_tokens = sampling.end_token_ids.clone();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Self { bias, end_tokens }
    }

    /// What is added to which token: no token twice, so that an order of additions does not matter.
    pub(super) fn values(&self, forbid_end: bool) -> impl Iterator<Item = (u32, f32)> {
        let forbidden = if forbid_end { &self.end_tokens[..] } else { &[] };
        let bias = self.bias.iter().copied();
        bias.filter(|(token, _)| forbidden.binary_search(token).is_err())
            .chain(forbidden.iter().map(|&token| (token, f32::NEG_INFINITY)))
    }
}

/// How often each token stands in the output, with the flag of those that stand in the prompt.
fn token_counts(ids: &[u32], num_prompt_tokens: usize, vocab_size: usize) -> Vec<i32> {
    let mut counts = vec![0; vocab_size];
    let (prompt, output) = ids.split_at(num_prompt_tokens);
    output.iter().for_each(|&id| counts[id as usize] += 1);
    prompt.iter().for_each(|&id| counts[id as usize] |= IN_PROMPT);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tokens_count_as_output_after_a_resume() {
        let counts = token_counts(&[1, 2, 2, 1, 3, 3], 3, 5);
        assert_eq!(counts, [0, IN_PROMPT | 1, IN_PROMPT, 2, 0]);
    }

    #[test]
    fn no_token_is_edited_twice() {
        let sampling = RowSampling {
            logit_bias: vec![(7, 1.0), (3, -2.0), (7, 0.5)],
            end_token_ids: vec![9, 3, 9],
            ..RowSampling::default()
        };
        let edits = RowEdits::new(&sampling);
        assert_eq!(edits.values(false).collect::<Vec<_>>(), [(3, -2.0), (7, 1.5)]);
        let never = f32::NEG_INFINITY;
        assert_eq!(edits.values(true).collect::<Vec<_>>(), [(7, 1.5), (3, never), (9, never)]);
    }
}
