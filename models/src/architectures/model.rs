//! What the executor sees of a model.

use quire_kernels::{AttentionPlan, DType, KvGroupSpec, KvKind, KvLayer, Result, StepCtx, StepView, Tensor};

use crate::config::ModelConfig;

/// A loaded model. It knows no batch, no sequence and no cache: the flat input of a step goes in, logits
/// come out, and the caches are lent for the call.
pub trait Model: Send + Sync {
    /// Enqueues the layers of one step. `hidden`, `[num_logits, hidden_size]` in the activation dtype, gets
    /// the last hidden state (final norm applied) of every entry of `logits_idx`. Everything else lives in
    /// the scratch of `ctx`, so the call may be captured and replayed.
    ///
    /// # Errors
    /// Those of the device, and [`ScratchExhausted`](quire_kernels::Error::ScratchExhausted) where less
    /// was planned than [`Architecture::scratch_bytes`](super::Architecture::scratch_bytes).
    fn hidden_states(&self, ctx: &mut StepCtx, input: &ModelInput<'_>, hidden: &Tensor) -> Result<()>;

    /// Turns rows of `hidden` into rows of `logits`, `[n, vocab_size]` F32. Rows do not depend on each
    /// other, so a long prompt's logits can be had in slices.
    ///
    /// # Errors
    /// As [`hidden_states`](Self::hidden_states).
    fn logits(&self, ctx: &mut StepCtx, hidden: &Tensor, logits: &Tensor) -> Result<()>;

    /// Width of a hidden state.
    fn hidden_size(&self) -> usize;

    /// Type of a hidden state: the device's activation dtype.
    fn activation_dtype(&self) -> DType;

    /// Width of a row of logits.
    fn vocab_size(&self) -> usize;

    /// The whole forward pass: `logits`, `[num_logits, vocab_size]` F32, gets a row for every entry of
    /// `logits_idx`.
    ///
    /// # Errors
    /// As [`hidden_states`](Self::hidden_states).
    fn forward(&self, ctx: &mut StepCtx, input: &ModelInput<'_>, logits: &Tensor) -> Result<()> {
        let hidden = ctx.alloc(self.activation_dtype(), &[logits.num_rows(), self.hidden_size()])?;
        ctx.scope(|ctx| self.hidden_states(ctx, input, &hidden))?;
        self.logits(ctx, &hidden, logits)
    }

    /// Device memory that the weights and tables take.
    fn num_bytes(&self) -> usize;

    /// The kernels that serve the linear layers, with how many layers each serves.
    fn kernels(&self) -> Vec<(String, usize)>;
}

/// The flat input of a step.
#[derive(Clone, Copy, Debug)]
pub struct ModelInput<'a> {
    /// The step as each KV group sees it, in the order of [`kv_groups`]. Token ids, positions and
    /// `logits_idx` are the same in all of them and are read from the first.
    pub groups: &'a [GroupStep],
    /// The cache of every layer.
    pub layers: &'a [KvLayer],
}

/// The step as one KV group sees it.
#[derive(Clone, Debug)]
pub struct GroupStep {
    /// Metadata, with the group's block tables and slots.
    pub view: StepView,
    /// What attention planned for it.
    pub plan: AttentionPlan,
}

/// The KV groups of a decoder: layers that see everything, then layers with a window. A group without
/// layers is left out.
pub fn kv_groups(config: &ModelConfig, dtype: DType) -> Vec<KvGroupSpec> {
    let (windowed, full): (Vec<usize>, Vec<usize>) =
        (0..config.num_layers).partition(|&layer| config.window(layer).is_some());
    let window = config.sliding_window.as_ref().map_or(0, |window| window.num_tokens);
    [(full, KvKind::Full), (windowed, KvKind::Window(window))]
        .into_iter()
        .filter(|(layers, _)| !layers.is_empty())
        .map(|(layers, kind)| KvGroupSpec {
            layers,
            kind,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            dtype,
        })
        .collect()
}
