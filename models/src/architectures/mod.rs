//! Models: arithmetic over [`Kernels`](quire_kernels::Kernels), one struct a module of the checkpoint.

mod attention;
mod decoder;
mod gemma;
mod granite;
mod llama;
mod loader;
mod mistral;
mod mixtral;
mod mlp;
mod model;
mod moe;
mod norm;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod registry;
mod rope;

use attention::AttentionModules;
pub use attention::{Attention, AttentionInput};
pub(crate) use decoder::decoder_layers;
pub use decoder::{
    BlockNorms, CausalLm, DecoderLayer, DecoderSpec, ExpertNames, QkNorm, Storage, decoder_tensors,
};
pub use gemma::{Gemma2, Gemma3};
pub use granite::Granite;
pub use llama::Llama;
pub use loader::{LinearModule, Loader};
pub use mistral::Mistral;
pub use mixtral::Mixtral;
pub use mlp::{Mlp, MlpModules};
pub use model::{GroupStep, Model, ModelInput, kv_groups};
pub use moe::SparseMlp;
use moe::SparseMlpModules;
pub use norm::RmsNorm;
pub use olmo2::Olmo2;
pub use phi3::Phi3;
pub use qwen2::{Qwen2, Qwen2Moe};
pub use qwen3::{Qwen3, Qwen3Moe};
pub use registry::{Architecture, ModelRegistry};
pub use rope::{RopeTables, rope_table, rope_values};
