//! Models: arithmetic over [`Kernels`](quire_kernels::Kernels), one struct a module of the checkpoint.

mod attention;
mod decoder;
mod llama;
mod loader;
mod mlp;
mod model;
mod norm;
mod qwen2;
mod registry;
mod rope;

pub use attention::{Attention, AttentionInput};
pub(crate) use decoder::decoder_layers;
pub use decoder::{CausalLm, DecoderLayer, decoder_tensors};
pub use llama::Llama;
pub use loader::{LinearModule, Loader};
pub use mlp::Mlp;
pub use model::{GroupStep, Model, ModelInput, kv_groups};
pub use norm::RmsNorm;
pub use qwen2::Qwen2;
pub use registry::{Architecture, ModelRegistry};
pub use rope::{inverse_frequencies, rope_table};
