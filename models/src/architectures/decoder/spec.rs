//! How a decoder is put together, as data.

/// What an architecture's decoder has beside its sizes, which are in the
/// [`ModelConfig`](crate::ModelConfig): where its norms stand, and what its tensors are called.
///
/// The default is Llama's (Touvron et al., 2023): a norm in front of each block, q, k, v and gate, up in tensors of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderSpec {
    /// Norms around attention.
    pub attention_norms: BlockNorms,
    /// Norms around the MLP.
    pub mlp_norms: BlockNorms,
    /// How q, k and v are stored.
    pub qkv: Storage,
    /// How the two halves of a gated MLP are stored.
    pub gate_up: Storage,
    /// Whether queries and keys are normalized.
    pub qk_norm: Option<QkNorm>,
    /// What the tensors of experts are called.
    pub experts: ExpertNames,
}

/// Norms around a block: `x += after(block(before(x)))`, by the names of their modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockNorms {
    /// Of what goes in.
    pub before: Option<&'static str>,
    /// Of what comes out, before it is added.
    pub after: Option<&'static str>,
}

/// How linear layers that read the same input are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Each in a tensor of its own.
    Apart,
    /// Rows one below the other in one tensor.
    Packed,
}

/// How queries and keys are normalized before they are turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself, all with one weight.
    PerHead,
    /// All heads of a token together.
    Whole,
}

/// What the modules of a mixture of experts are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    /// Of the layer: `mlp`.
    pub module: &'static str,
    /// Of the gate, the other projection, and the one back.
    pub projections: [&'static str; 3],
}

impl BlockNorms {
    /// The names of those that there are.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.before.into_iter().chain(self.after)
    }
}

impl Default for DecoderSpec {
    fn default() -> Self {
        Self {
            attention_norms: BlockNorms { before: Some("input_layernorm"), after: None },
            mlp_norms: BlockNorms { before: Some("post_attention_layernorm"), after: None },
            qkv: Storage::Apart,
            gate_up: Storage::Apart,
            qk_norm: None,
            experts: ExpertNames { module: "mlp", projections: ["gate_proj", "up_proj", "down_proj"] },
        }
    }
}
