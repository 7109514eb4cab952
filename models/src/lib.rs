//! Model files and models of Quire: what a checkpoint holds, and the arithmetic that runs it.
//!
//! The crate stands between files and devices. Below it is `quire-kernels`, whose traits it computes with;
//! above it are the executor, which runs a [`Model`], and the engine, which takes the [`Tokenizer`] and the
//! [`ChatTemplates`]. It decides nothing about batching and owns no cache: KV blocks are lent for a call.
//!
//! ```text
//! path -> Checkpoint -> ModelConfig, Tokenizer, ChatTemplates      no weight is read
//!             |
//!             +- ModelRegistry::find -> Architecture
//!                    tensors, kv_groups, scratch_bytes             what it will take: the memory plan
//!                    build(Loader) -> Model                        weights are read, packed, uploaded
//! ```
//!
//! # Example
//!
//! ```
//! use quire_models::testing::TinyModel;
//! use quire_models::{Checkpoint, EncodeOptions, LoadOptions, ModelRegistry};
//!
//! // A model folder as the Hugging Face hub has them (here a tiny one); a `.gguf` file would do as well.
//! let folder = tempfile::tempdir()?;
//! TinyModel::llama().write_folder(folder.path())?;
//!
//! let checkpoint = Checkpoint::open(folder.path(), &LoadOptions::default())?;
//! let architecture_name = &checkpoint.config().architecture;
//! let registry = ModelRegistry::default();
//! let tensors = registry.find(architecture_name)?.tensors(&checkpoint)?;
//! let summary = checkpoint.check(&tensors)?;
//! println!("{architecture_name}: {} parameters, {} bytes", summary.num_parameters, summary.num_bytes);
//!
//! let tokenizer = checkpoint.tokenizer()?;
//! let ids = tokenizer.encode("the inner one", EncodeOptions::default())?;
//! assert_eq!(tokenizer.decode(&ids), "the inner one");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - No file can make this crate panic or reserve memory that the file does not account for: counts, lengths,
//!   offsets and shapes are checked against the file's length before they are used. [`gguf::fuzz`] and
//!   [`safetensors::fuzz`] hold it to that.
//! - Every error names the file, and in it the field or tensor, with what was expected and what was given.
//! - What a model needs is checked by [`Checkpoint::check`] before a weight is read, and what a checkpoint
//!   holds beyond it is reported.
//! - Tensors have the names and the row order of Hugging Face checkpoints, whatever they are stored in.
//! - Model code never asks what a weight is stored as.

mod architectures;
mod caught;
pub mod check;
mod checkpoint;
mod config;
mod error;
mod file;
pub mod gguf;
mod json;
mod mmap;
mod parallel;
mod random;
pub mod safetensors;
pub mod testing;
mod tokenizer;

pub use architectures::{
    Architecture, Attention, AttentionInput, BlockNorms, CausalLm, DecoderLayer, DecoderSpec, ExpertNames,
    Gemma2, Gemma3, Granite, GroupStep, LinearModule, Llama, Loader, Mistral, Mixtral, Mlp, MlpModules,
    Model, ModelInput, ModelRegistry, Olmo2, Phi3, QkNorm, Qwen2, Qwen2Moe, Qwen3, Qwen3Moe, RmsNorm,
    RopeTables, SparseMlp, Storage, decoder_tensors, kv_groups, rope_table, rope_values,
};
pub use caught::panics_are_caught;
pub use checkpoint::{
    Checkpoint, HostScales, HostTensor, LoadFormat, LoadOptions, OnlineQuantization, OutputHead, StoredPart,
    TensorInfo, TensorSource, TensorSpec, WeightDType, WeightSummary, identify_tokenizer,
};
pub use config::{
    ConfigError, GenerationConfig, ModelConfig, MoeConfig, Quantization, RopeConfig, RopeScaling,
    SlidingWindow,
};
pub use error::{Error, Result};
pub use json::JsonError;
pub use mmap::{MappedFile, MappedRange, TensorBytes};
pub use tokenizer::{
    ChatTemplates, EncodeOptions, NamedTokens, SpecialTokens, TextOptions, TextStream, Tokenizer,
    TokenizerError,
};
