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
