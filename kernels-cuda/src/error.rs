//! Why there are no CUDA kernels.

use quire_kernels::DType;

#[cfg(feature = "cuda")]
use crate::status::DriverError;

/// Why there are no CUDA kernels.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This program holds no CUDA kernels.
    #[error(
        "CUDA device {ordinal} cannot be used: CUDA kernels are not built into this program; build it with \
         `--features cuda`"
    )]
    NotBuilt {
        /// The device that was asked for.
        ordinal: usize,
    },
    /// A library is not installed, or cannot be loaded.
    #[error(
        "{library} cannot be loaded (tried {tried}); install it, or name its folder in QUIRE_CUDA_LIBRARIES"
    )]
    NoLibrary {
        /// What is missing, in words.
        library: &'static str,
        /// The files that were tried, each with what is wrong there.
        tried: String,
    },
    /// What was loaded as the driver is something else.
    #[error(
        "{library} was loaded as the NVIDIA driver and is none, since it has no function {symbol}; install the \
         driver, or correct QUIRE_CUDA_LIBRARIES and LD_LIBRARY_PATH"
    )]
    NotADriver {
        /// The library's file.
        library: String,
        /// A function of every driver.
        symbol: &'static str,
    },
    /// A library lacks a function.
    #[error("{library} has no function {symbol}: it is too old; install a newer one")]
    NoFunction {
        /// The library's file.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// The driver is older than the kernels.
    #[error("the NVIDIA driver supports CUDA {found}, the kernels need {needed}; install a newer driver")]
    OldDriver {
        /// What the driver supports.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// There is a driver and no device.
    #[error("the NVIDIA driver sees no device ({reason}); look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES")]
    NoDevice {
        /// What the driver said.
        reason: String,
    },
    /// There is no device of that number.
    #[error("there is no CUDA device {ordinal}: the driver sees {num_devices}, numbered from 0")]
    NoSuchDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// How many there are.
        num_devices: usize,
    },
    /// No image of a kernel family runs on the device.
    #[error(
        "this program has no image of the kernels `{family}` for {device} (compute capability {major}.{minor}; \
         built in: {built}); run `cargo xtask build-kernels --arch {arch}` and build again"
    )]
    NoImage {
        /// The family.
        family: &'static str,
        /// The device's name.
        device: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
        /// The images that are there.
        built: String,
        /// What to build.
        arch: &'static str,
    },
    /// The device is older than all that kernels can be built for.
    #[error("{device} has compute capability {major}.{minor}; the kernels need 8.0 or newer")]
    OldDevice {
        /// The device's name.
        device: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
    },
    /// The driver does not load an image that is made for the device.
    #[cfg(feature = "cuda")]
    #[error(
        "the driver, of CUDA {driver}, refuses the kernels `{family}` for {arch} ({source}): a newer toolkit may have \
         built them; install a newer driver, or run `cargo xtask build-kernels` with an older toolkit and build again"
    )]
    ImageRefused {
        /// The family.
        family: &'static str,
        /// What it is built for.
        arch: &'static str,
        /// The CUDA version that the driver supports.
        driver: String,
        /// What the driver said.
        source: Box<DriverError>,
    },
    /// An image lacks a kernel.
    #[error(
        "the image of the kernels `{family}` holds no kernel {kernel}: it is older than this program; run `cargo \
         xtask build-kernels` and build again"
    )]
    NoKernel {
        /// The family.
        family: &'static str,
        /// The kernel.
        kernel: String,
    },
    /// The backend computes in another type.
    #[error("the CUDA backend has no kernels for activations of {0}; bf16 and f16 are there")]
    ActivationDType(DType),
    /// A part is not there yet.
    #[error("the CUDA backend has no part `{part}` yet")]
    PartMissing {
        /// The part.
        part: &'static str,
    },
    /// The driver refused a call.
    #[cfg(feature = "cuda")]
    #[error("CUDA device {ordinal} cannot be used: {source}")]
    Driver {
        /// The device.
        ordinal: usize,
        /// What the driver said.
        source: DriverError,
    },
    /// The device failed while it was set up.
    #[error(transparent)]
    Device(#[from] quire_kernels::Error),
}
