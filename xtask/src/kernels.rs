//! `build-kernels`.

use crate::error::{Error, Result};

/// The command's place is kept; there is no `.cu` file yet.
pub(crate) fn build() -> Result<()> {
    Err(Error::NoCudaBackend)
}
