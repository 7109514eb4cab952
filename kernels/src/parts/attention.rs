use super::Part;
use crate::{DType, Error, Result, StepCtx, StepRows, StepView, Tensor};

/// What kind of cache a group of layers keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvKind {
    /// Keys and values of every token.
    Full,
    /// Keys and values; a query sees itself and the `window - 1` tokens before it.
    Window(usize),
    /// One compressed latent a token (DeepSeek MLA).
    Latent {
        /// Elements of the latent.
        rank: usize,
        /// Elements of the shared rotary key.
        rope_dim: usize,
    },
    /// A state of fixed size a sequence.
    State {
        /// Its size.
        num_bytes: usize,
    },
}

/// Layers whose caches look alike and share one block table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvGroupSpec {
    /// Which layers of the model.
    pub layers: Vec<usize>,
    /// The kind of cache.
    pub kind: KvKind,
    /// Key and value heads (of this rank).
    pub num_kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Type of the stored elements.
    pub dtype: DType,
}

/// How a backend stores a block of one layer: a contiguous run of bytes, the inside of which only the attention
/// part knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Bytes that a block takes in one layer.
    pub block_bytes: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Type of the stored elements.
    pub dtype: DType,
}

/// The cache of one layer.
#[derive(Clone, Debug)]
pub struct KvLayer {
    /// `[num_blocks, block_bytes]` U8.
    pub blocks: Tensor,
    /// What the bytes of a block are.
    pub layout: KvLayout,
    /// What its elements are multiplied with; other than [`KvScales::ONE`] only for a cache of 8-bit floats.
    pub scales: KvScales,
}

/// What the elements of a layer's cache stand for: a stored element times its scale. Writing divides in float32 and then
/// rounds; reading multiplies, for which it is enough to multiply scores by `k` and results by `v`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScales {
    /// Of the keys.
    pub k: f32,
    /// Of the values.
    pub v: f32,
}

impl KvScales {
    /// Elements that stand for themselves.
    pub const ONE: Self = Self { k: 1.0, v: 1.0 };
}

impl Default for KvScales {
    fn default() -> Self {
        Self::ONE
    }
}

/// What [`AttentionKernels::plan`] decided for the step: splits, tiles, shared-prefix groups. Empty where the
/// backend needs none.
#[derive(Clone, Debug, Default)]
pub struct AttentionPlan {
    /// The backend's own, in scratch.
    pub tensors: Vec<Tensor>,
}

/// Arguments of [`AttentionKernels::forward`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// `[num_tokens, num_heads * head_dim]`.
    pub q: &'a Tensor,
    /// The layer's cache; keys and values of this step are written already.
    pub kv: &'a KvLayer,
    /// Rows, lengths and block tables.
    pub step: &'a StepView,
    /// The step's plan.
    pub plan: &'a AttentionPlan,
    /// Multiplies the scores; `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// A query sees itself and the `window - 1` tokens before it.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)` before the softmax. Only for a part that
    /// [supports](AttentionKernels::supports_soft_cap) it.
    pub soft_cap: Option<f32>,
    /// `[num_tokens, num_heads * head_dim]`.
    pub out: &'a Tensor,
}

/// Paged attention (Kwon et al., 2023): mixed rows of any query length over block tables, causal, query heads in
/// groups that share a key and value head.
pub trait AttentionKernels: Part {
    /// The layout of a group's blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a kind, head size, block size or dtype that the backend has no kernel for.
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout>;

    /// Whether scores can have a soft cap: what a model is refused for when it is loaded.
    fn supports_soft_cap(&self) -> bool {
        false
    }

    /// Whether an 8-bit cache can have [scales](KvScales): what `--kv-cache-dtype fp8` is refused for where a checkpoint
    /// brings some.
    fn supports_kv_scales(&self) -> bool {
        false
    }

    /// Decides once a step how the rows are split; enqueues no kernel, only writes to scratch. What it allocates
    /// depends on `key` alone.
    ///
    /// # Errors
    ///
    /// Those of the device and of the scratch.
    fn plan(
        &self,
        ctx: &mut StepCtx,
        key: crate::ShapeKey,
        rows: &StepRows,
        layout: &KvLayout,
    ) -> Result<AttentionPlan> {
        let _ = (ctx, key, rows, layout);
        Ok(AttentionPlan::default())
    }

    /// Stores keys and values, `[num_tokens, num_kv_heads * head_dim]` each, in the slots of `slot_mapping`
    /// (`[num_tokens]` I32, `block * block_size + offset`; -1 is not written), divided by the layer's scales.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<()>;

    /// `out = softmax(soft_cap(scale · q kᵀ) + mask) v` for every query of every row, keys and values times the layer's
    /// scales.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()>;
}

impl KvLayout {
    /// The layout that most backends want: keys `[num_kv_heads, block_size, head_dim]`, then values alike.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a kind of cache other than full or windowed.
    pub fn keys_then_values(spec: &KvGroupSpec, block_size: usize, backend: &str) -> Result<Self> {
        if !matches!(spec.kind, KvKind::Full | KvKind::Window(_)) || !spec.dtype.is_float() {
            return Err(Error::Unsupported {
                backend: backend.to_owned(),
                part: "attention",
                what: format!("a {:?} cache of {}", spec.kind, spec.dtype),
            });
        }
        let elements = 2 * spec.num_kv_heads * block_size * spec.head_dim;
        Ok(Self {
            block_bytes: elements * spec.dtype.block_bytes(),
            block_size,
            num_kv_heads: spec.num_kv_heads,
            head_dim: spec.head_dim,
            dtype: spec.dtype,
        })
    }
}
