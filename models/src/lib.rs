//! Model configurations, checkpoints (safetensors, GGUF), tokenizer files and architectures written over kernel traits.

mod architectures;
mod checkpoint;
mod config;
mod error;
pub mod gguf;
mod json;
mod mmap;
mod parallel;
mod random;
pub mod safetensors;
pub mod testing;
mod tokenizer;

pub use architectures::{
    Architecture, Attention, AttentionInput, CausalLm, DecoderLayer, GroupStep, LinearModule, Llama, Loader,
    Mlp, Model, ModelInput, ModelRegistry, Qwen2, RmsNorm, decoder_tensors, inverse_frequencies, kv_groups,
    rope_table,
};
pub use checkpoint::{
    Checkpoint, HostTensor, LoadFormat, LoadOptions, OutputHead, TensorInfo, TensorSource, TensorSpec,
    WeightDType, WeightSummary,
};
pub use config::{ConfigError, GenerationConfig, ModelConfig, RopeConfig, RopeScaling, SlidingWindow};
pub use error::{Error, Result};
pub use mmap::{MappedFile, TensorBytes};
pub use tokenizer::{ChatTemplates, EncodeOptions, NamedTokens, SpecialTokens, Tokenizer, TokenizerError};
