use super::Part;
use crate::{DType, Device, Result, StepCtx, Tensor};

/// Sampling parameters of every row slot, on the device. A row keeps its slot while it runs; a step names slots.
#[derive(Clone, Debug)]
pub struct SamplingState {
    /// `[max_num_seqs]` F32; 0 is greedy.
    pub temperature: Tensor,
    /// `[max_num_seqs]` I32; 0 is off.
    pub top_k: Tensor,
    /// `[max_num_seqs]` F32 in (0, 1]; 1 is off.
    pub top_p: Tensor,
    /// `[max_num_seqs]` F32 in [0, 1]; 0 is off.
    pub min_p: Tensor,
    /// `[max_num_seqs]` F32, added once for a token that was generated.
    pub presence_penalty: Tensor,
    /// `[max_num_seqs]` F32, times the count of the token in the output.
    pub frequency_penalty: Tensor,
    /// `[max_num_seqs]` F32; 1 is off.
    pub repetition_penalty: Tensor,
    /// `[max_num_seqs, 3]` U32: low and high half of the seed, index of the sequence in its request.
    pub keys: Tensor,
    /// `[max_num_seqs, vocab_size]` I32: how often a token stands in the output, plus [`IN_PROMPT`] where it
    /// stands in the prompt. What the penalties read.
    pub counts: Tensor,
    /// `[max_num_seqs, mask_words(vocab_size)]` U32: a bit a token, least significant first, set where the token may be
    /// drawn. Bits past the vocabulary mean nothing. What [`SamplingKernels::mask`] reads.
    pub masks: Tensor,
}

/// Words of 32 bits that a mask of the vocabulary takes.
pub fn mask_words(vocab_size: usize) -> usize {
    vocab_size.div_ceil(32)
}

/// The token of a row whose logits the model did not compute: one is NaN or plus infinity, or none is finite.
pub const NO_TOKEN: i32 = -1;

/// Flag in [`SamplingState::counts`] of a token that stands in the prompt.
pub const IN_PROMPT: i32 = 1 << 30;

impl SamplingState {
    /// Bytes that [`new`](Self::new) allocates.
    pub fn num_bytes(max_num_seqs: usize, vocab_size: usize) -> usize {
        4 * max_num_seqs * (7 + 3 + vocab_size + mask_words(vocab_size))
    }

    /// Room for `max_num_seqs` rows.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(device: &dyn Device, max_num_seqs: usize, vocab_size: usize) -> Result<Self> {
        let alloc = |dtype: DType, dims: &[usize]| -> Result<Tensor> {
            let num_bytes = 4 * dims.iter().product::<usize>();
            Ok(Tensor::new(device.allocate(num_bytes)?, 0, dtype, dims))
        };
        let column = |dtype| alloc(dtype, &[max_num_seqs]);
        Ok(Self {
            temperature: column(DType::F32)?,
            top_k: column(DType::I32)?,
            top_p: column(DType::F32)?,
            min_p: column(DType::F32)?,
            presence_penalty: column(DType::F32)?,
            frequency_penalty: column(DType::F32)?,
            repetition_penalty: column(DType::F32)?,
            keys: alloc(DType::U32, &[max_num_seqs, 3])?,
            counts: alloc(DType::I32, &[max_num_seqs, vocab_size])?,
            masks: alloc(DType::U32, &[max_num_seqs, mask_words(vocab_size)])?,
        })
    }
}

/// The rows whose logits are at hand.
#[derive(Clone, Copy, Debug)]
pub struct SamplingRows<'a> {
    /// `[n, vocab_size]` F32, changed in place.
    pub logits: &'a Tensor,
    /// `[n]` I32: each row's slot in the state; -1 is padding.
    pub slots: &'a Tensor,
    /// `[n]` I32: the position that the sampled token will have in its sequence.
    pub positions: &'a Tensor,
}

/// What is told of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenValues {
    /// Its natural log-probability.
    #[default]
    Logprobs,
    /// Its logit.
    Logits,
}

/// Log-probabilities of chosen tokens.
#[derive(Clone, Copy, Debug)]
pub struct LogprobsOut<'a> {
    /// What is written to `logprobs`.
    pub values: TokenValues,
    /// `[n, 1 + num_top]` I32: the chosen token, then the best ones, the highest first (ties: the lower id).
    pub token_ids: &'a Tensor,
    /// `[n, 1 + num_top]` F32: their values.
    pub logprobs: &'a Tensor,
    /// `[n]` I32: how many tokens have a log-probability at least the chosen one's; 1 for the best.
    pub ranks: &'a Tensor,
}

/// Sampling on the device.
///
/// The order is: edits, masks, penalties, then for rows with a temperature: division by it, min-p, top-k (ties at the
/// threshold stay), top-p (the smallest set whose mass reaches p, the best token always in it), and the draw.
/// The draw is the argmax over the kept tokens of `logit / temperature + gumbel`, the noise being
/// [`gumbel`](crate::random::gumbel) of (seed, sequence index, position, token): so it depends on nothing but
/// the row itself. Ties take the lower id. A greedy row takes the argmax of its logits.
///
/// A row that holds NaN, plus infinity or nothing finite has no token, whatever else it holds and whatever its parameters
/// are: its token is [`NO_TOKEN`], which every operation here takes without harm. Minus infinity is what forbids a token.
pub trait SamplingKernels: Part {
    /// Sets `logits[row, token] = value` (-inf to forbid) or adds to it. `edits` is `[m, 2]` I32 (row of the
    /// logits, token; -1 is padding), `values` `[m]` F32, added; -inf forbids.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn add_bias(&self, ctx: &mut StepCtx, logits: &Tensor, edits: &Tensor, values: &Tensor) -> Result<()>;

    /// Forbids (minus infinity, whatever the logit is) the tokens whose bit is not set in the mask of the row's slot.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn mask(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()>;

    /// Repetition (over prompt and output: a positive logit is divided, another one multiplied), frequency and
    /// presence penalties (over the output), from the slots' counts.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn penalize(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()>;

    /// Samples a token for each row into `out`, `[n]` I32: 0 for padding, [`NO_TOKEN`] for a row without one. The
    /// logits are undefined afterwards.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn sample(
        &self,
        ctx: &mut StepCtx,
        state: &SamplingState,
        rows: &SamplingRows<'_>,
        out: &Tensor,
    ) -> Result<()>;

    /// Leaves what [`sample`](Self::sample) would draw from: the logits of the tokens that a row keeps, divided by its
    /// temperature, and minus infinity in place of the others. Greedy rows, padding and rows without a token
    /// stay as they are.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn filter(&self, ctx: &mut StepCtx, state: &SamplingState, rows: &SamplingRows<'_>) -> Result<()>;

    /// Counts `tokens` (`[n]` I32) as output of their slots (`[n]` I32; -1 is padding). [`NO_TOKEN`] is not counted.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn count(&self, ctx: &mut StepCtx, state: &SamplingState, slots: &Tensor, tokens: &Tensor) -> Result<()>;

    /// The most best tokens that [`logprobs`](Self::logprobs) finds in a row of `vocab_size` logits.
    fn max_top_logprobs(&self, vocab_size: usize) -> usize {
        vocab_size
    }

    /// Log-probabilities of `chosen` (`[n]` I32) and of the best tokens under `logits` (`[n, vocab_size]` F32), or their
    /// logits, where `out` says so. NaN and minus infinity have minus infinity as their value; so has [`NO_TOKEN`],
    /// whose rank is 0.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn logprobs(
        &self,
        ctx: &mut StepCtx,
        logits: &Tensor,
        chosen: &Tensor,
        out: &LogprobsOut<'_>,
    ) -> Result<()>;

    /// `dst[dst_idx[i]] = src[src_idx[i]]` for vectors of tokens (I32); an index of -1 skips. This is how a token sampled
    /// in one step becomes the input of the next without the host: [`NO_TOKEN`] is written as 0, which can be looked up.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn scatter(
        &self,
        ctx: &mut StepCtx,
        src: &Tensor,
        src_idx: &Tensor,
        dst: &Tensor,
        dst_idx: &Tensor,
    ) -> Result<()>;
}
