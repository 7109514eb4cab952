//! Faults on demand, for tests of what happens then.

use quire_kernels::{Kernels, Result};

use crate::queue::CudaQueue;

/// Makes the device of `kernels` fail as it does when a kernel writes where nothing is: everything on the device
/// is lost, for the rest of the process. Does nothing to kernels of another backend.
///
/// # Errors
///
/// [`DeviceLost`](quire_kernels::Error::DeviceLost): the failure.
pub fn lose_device(kernels: &Kernels) -> Result<()> {
    let mut ctx = kernels.step_ctx(0)?;
    ctx.queue_as::<CudaQueue>().map_or(Ok(()), CudaQueue::lose)
}

/// The device for tests of this crate's inside; none, with a line, where there is none.
#[cfg(test)]
pub(crate) fn gpu() -> Option<std::sync::Arc<crate::device::CudaDevice>> {
    let opened = crate::device::CudaDevice::open(crate::CudaConfig::default());
    let is_demanded = std::env::var_os("QUIRE_TEST_CUDA").is_some_and(|value| value == "1");
    match opened {
        Ok(device) => Some(device),
        Err(error @ (crate::Error::NoLibrary { .. } | crate::Error::NoDevice { .. })) if !is_demanded => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
