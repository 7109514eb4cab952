//! Whether there is a GPU to test on.

use quire_kernels_cuda::Error;

/// Demands a GPU where it is set to 1: without one the tests fail rather than skip.
const DEMAND: &str = "QUIRE_TEST_CUDA";

/// What `make` makes of a GPU, or `None`, with a line, on a machine without one.
///
/// # Panics
///
/// Where there is a GPU and it cannot be used, or none and one is demanded.
pub(crate) fn open<T>(make: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    let is_demanded = std::env::var_os(DEMAND).is_some_and(|value| value == "1");
    match make() {
        Ok(made) => Some(made),
        Err(error @ (Error::NoLibrary { .. } | Error::NoDevice { .. })) if !is_demanded => {
            println!("skipped: {error} ({DEMAND}=1 demands a GPU)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
