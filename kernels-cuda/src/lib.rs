//! The CUDA kernel backend of Quire: own kernels, cuBLAS, captured graphs.
//!
//! The crate provides the parts of `quire-kernels` for NVIDIA GPUs, and depends on nothing else of ours; only the
//! server, examples and tests name it.
//!
//! ```text
//!   cuda/*.cu --- cargo xtask build-kernels ---> target/kernels-cuda/FAMILY.ARCH.cubin
//!                 (the only thing that needs nvcc)         | embedded by build.rs
//!                                                          v
//!   CudaConfig --> kernels() --> CudaDevice --> parts: linear, attention, norm, ...
//!                                   | memory, modules          | launch on the step's queue
//!                                   +--> queues: a stream, pinned memory in front of it, graphs
//! ```
//!
//! Without the feature `cuda` the crate is empty but for its types, and says so. With it, it still builds on a machine
//! without CUDA, and so does what depends on it: the driver and cuBLAS are loaded when they are asked for. What is
//! missing then is an error in words.
//!
//! # Example
//!
//! ```
//! use quire_kernels_cuda::{CudaConfig, kernels};
//!
//! match kernels(CudaConfig { ordinal: 0, ..CudaConfig::default() }) {
//!     Ok(kernels) => println!("{}", kernels.device().info().name),
//!     // Not built, no driver, no device, no kernels for this device: what to do about it.
//!     Err(error) => println!("{error}"),
//! }
//! // A device that is not there is an error in every build and on every machine.
//! assert!(kernels(CudaConfig { ordinal: 1000, ..CudaConfig::default() }).is_err());
//! ```
//!
//! # Invariants
//!
//! - [`kernels`] returns kernels that run on the device it was asked for, or an error.
//! - After `Device::reserve` no device memory is allocated but by the driver for graphs.
//! - A queue's work happens in order on one stream, which waits for others at fences only. A write has taken its bytes when it
//!   returns; a recorded step takes nothing from the host, so what changes lies in device memory.
//! - Activations are bf16 or f16; sums are in f32.
//! - An error of a failed device is the same at every later call, and no wait outlives it.
//! - Every call may come from any thread: each makes the device current on its own.
#![cfg_attr(feature = "cuda", allow(unsafe_code))]

#[cfg(all(feature = "cuda", not(all(target_arch = "x86_64", target_os = "linux"))))]
compile_error!(
    "the feature `cuda` of quire-kernels-cuda is there for x86_64 Linux only: the trampolines that load the driver \
     are written for it; build without the feature elsewhere"
);

#[cfg(feature = "cuda")]
mod activation;
#[cfg(feature = "cuda")]
mod arena;
#[cfg(feature = "cuda")]
mod assemble;
#[cfg(feature = "cuda")]
mod attention;
#[cfg(feature = "cuda")]
mod capture;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod copy;
#[cfg(feature = "cuda")]
mod cublaslt;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod elementwise;
mod error;
#[cfg(feature = "cuda")]
mod event;
#[cfg(feature = "cuda")]
mod fence;
#[cfg(feature = "cuda")]
mod ffi;
#[cfg(feature = "cuda")]
mod fused;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod host;
#[cfg(feature = "cuda")]
mod images;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod linear;
#[cfg(feature = "cuda")]
mod mark;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod norm;
#[cfg(feature = "cuda")]
mod nvtx;
#[cfg(feature = "cuda")]
mod pace;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod queue;
#[cfg(feature = "cuda")]
mod readback;
#[cfg(feature = "cuda")]
mod ring;
#[cfg(feature = "cuda")]
mod rope;
#[cfg(feature = "cuda")]
mod sampling;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(feature = "cuda")]
mod status;
#[cfg(feature = "cuda")]
pub mod testing;
#[cfg(feature = "cuda")]
mod trampoline;
#[cfg(feature = "cuda")]
mod transfer;
#[cfg(feature = "cuda")]
mod tune;
mod tuning;
#[cfg(feature = "cuda")]
mod upload;

use quire_kernels::{DType, Kernels};

pub use error::Error;
#[cfg(feature = "cuda")]
pub use status::DriverError;
pub use tuning::{KernelTuning, ProductShape, TunedProduct, TuningError};

/// Whether this program holds CUDA kernels at all.
pub const IS_BUILT: bool = cfg!(feature = "cuda");

/// How the backend is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaConfig {
    /// The device's number, from 0, as the driver counts those that CUDA_VISIBLE_DEVICES leaves.
    pub ordinal: usize,
    /// The dtype of activations: [`BF16`](DType::BF16) or [`F16`](DType::F16).
    pub activation_dtype: DType,
    /// Whether a row's result may not depend on the batch, the chunking or the cache, bit for bit. Slower.
    pub deterministic: bool,
}

impl Default for CudaConfig {
    /// The first device, bfloat16, as fast as it goes.
    fn default() -> Self {
        Self { ordinal: 0, activation_dtype: DType::BF16, deterministic: false }
    }
}

/// The kernels of a CUDA device.
///
/// # Errors
///
/// [`Error::NotBuilt`] in a program without the feature `cuda`; otherwise what the machine lacks.
pub fn kernels(config: CudaConfig) -> Result<Kernels, Error> {
    backend::kernels(config, None)
}

/// The kernels of a CUDA device, with algorithms that were measured there. A tuning of another device or another version
/// of cuBLASLt is ignored with a warning, as is any where results may not depend on the library's choices
/// ([`CudaConfig::deterministic`]).
///
/// # Errors
///
/// As [`kernels`].
pub fn tuned_kernels(config: CudaConfig, tuning: &KernelTuning) -> Result<Kernels, Error> {
    backend::kernels(config, Some(tuning))
}

/// How thoroughly algorithms are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneOptions {
    /// Answers of the library that are tried.
    pub max_candidates: usize,
    /// Measurements of each, of which the median counts.
    pub num_rounds: usize,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { max_candidates: 16, num_rounds: 5 }
    }
}

/// Measures what cuBLASLt offers for each product, and keeps what is faster than its first answer by more than 2 %. `tell`
/// is called after each. Takes the device's memory and minutes: for a program of its own, not for one that serves.
///
/// # Errors
///
/// As [`kernels`]; [`Error::NoLibrary`] where there is no cuBLASLt.
pub fn tune(
    config: CudaConfig,
    products: &[ProductShape],
    options: TuneOptions,
    tell: &mut dyn FnMut(&ProductShape, Option<&TunedProduct>),
) -> Result<KernelTuning, Error> {
    backend::tune(config, products, options, tell)
}

#[cfg(feature = "cuda")]
mod backend {
    pub(super) use crate::assemble::kernels;
    pub(super) use crate::tune::tune;
}

/// What a program without the backend has in its place.
#[cfg(not(feature = "cuda"))]
mod backend {
    use super::{CudaConfig, Error, KernelTuning, Kernels, ProductShape, TuneOptions, TunedProduct};

    pub(super) fn kernels(config: CudaConfig, _: Option<&KernelTuning>) -> Result<Kernels, Error> {
        Err(Error::NotBuilt { ordinal: config.ordinal })
    }

    pub(super) fn tune(
        config: CudaConfig,
        _: &[ProductShape],
        _: TuneOptions,
        _: &mut dyn FnMut(&ProductShape, Option<&TunedProduct>),
    ) -> Result<KernelTuning, Error> {
        Err(Error::NotBuilt { ordinal: config.ordinal })
    }
}
