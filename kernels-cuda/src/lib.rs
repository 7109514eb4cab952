//! The CUDA kernel backend of Quire.
//!
//! Its place: one of the backends behind the traits of [`quire_kernels`]. Nothing but the program that wires backends
//! names this crate.
//!
//! ```
//! use quire_kernels_cuda::{CudaConfig, kernels};
//!
//! // A device that is not there is an error in words, in every build and on every machine.
//! let error = kernels(CudaConfig { ordinal: 1000, ..CudaConfig::default() }).err();
//! println!("{}", error.expect("no machine has a thousand devices"));
//! ```
//!
//! What always holds: [`kernels`] returns kernels that run on the device it was asked for, or an error.
#![cfg_attr(feature = "cuda", allow(unsafe_code))]
// What the parts will call, before they are there.
#![cfg_attr(feature = "cuda", allow(dead_code))]

#[cfg(all(feature = "cuda", not(all(target_arch = "x86_64", target_os = "linux"))))]
compile_error!(
    "the feature `cuda` of quire-kernels-cuda is there for x86_64 Linux only: the trampolines that load the driver \
     are written for it; build without the feature elsewhere"
);

#[cfg(feature = "cuda")]
mod arena;
#[cfg(feature = "cuda")]
mod assemble;
#[cfg(feature = "cuda")]
mod capture;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod copy;
#[cfg(feature = "cuda")]
mod device;
mod error;
#[cfg(feature = "cuda")]
mod event;
#[cfg(feature = "cuda")]
mod ffi;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod images;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod missing;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod queue;
#[cfg(feature = "cuda")]
mod readback;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(feature = "cuda")]
mod status;
#[cfg(feature = "cuda")]
pub mod testing;
#[cfg(feature = "cuda")]
mod trampoline;
#[cfg(feature = "cuda")]
mod upload;

use quire_kernels::{DType, Kernels};

pub use error::Error;
#[cfg(feature = "cuda")]
pub use status::DriverError;

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
#[cfg(feature = "cuda")]
pub fn kernels(config: CudaConfig) -> Result<Kernels, Error> {
    assemble::kernels(config)
}

/// The kernels of a CUDA device.
///
/// # Errors
///
/// [`Error::NotBuilt`] in a program without the feature `cuda`; otherwise what the machine lacks.
#[cfg(not(feature = "cuda"))]
pub fn kernels(config: CudaConfig) -> Result<Kernels, Error> {
    Err(Error::NotBuilt { ordinal: config.ordinal })
}
