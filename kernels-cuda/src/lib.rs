//! The CUDA kernel backend of Quire.
//!
//! Its place: one of the backends behind the traits of [`quire_kernels`]. Nothing but the program that wires backends
//! names this crate.
//!
//! ```
//! // A program built without CUDA says so, rather than falling back in silence.
//! let error = quire_kernels_cuda::kernels(0).err().expect("CUDA is not built into this program");
//! assert!(error.to_string().contains("not built"));
//! ```
//!
//! What always holds: [`kernels`] returns kernels that run on the device it was asked for, or an error.

use quire_kernels::Kernels;

/// Why there are no CUDA kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This program holds no CUDA kernels.
    #[error(
        "CUDA device {ordinal} cannot be used: CUDA kernels are not built into this program (this version of \
         quire-kernels-cuda has none yet); --device cpu works"
    )]
    NotBuilt {
        /// The device that was asked for.
        ordinal: usize,
    },
}

/// Whether this program holds CUDA kernels at all.
pub const IS_BUILT: bool = false;

/// The kernels of the CUDA device `ordinal`.
///
/// # Errors
///
/// [`Error::NotBuilt`].
pub fn kernels(ordinal: usize) -> Result<Kernels, Error> {
    Err(Error::NotBuilt { ordinal })
}
