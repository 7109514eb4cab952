//! Launching kernels.

use std::ptr::null_mut;

use quire_kernels::{Result, StepCtx};

use crate::ffi::{self, CUstream};
use crate::module::{Kernel, parameter};
use crate::queue::CudaQueue;

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Blocks along the three dimensions; none where one is 0.
    pub(crate) blocks: [u32; 3],
    /// Threads a block.
    pub(crate) threads: u32,
    /// Dynamic shared memory a block.
    pub(crate) shared_bytes: u32,
    /// Whether blocks may start before the kernel before this one has ended (programmatic dependent launch): the
    /// kernel calls `griddepcontrol.wait` before it reads or writes what another kernel may touch.
    pub(crate) overlaps: bool,
}

/// Enqueues a kernel. Without blocks there is nothing to do.
///
/// # Safety
///
/// `P` mirrors the parameter struct of the kernel. The addresses in it are those of live buffers, large enough
/// for what the kernel does with this grid.
pub(crate) unsafe fn launch<P: Copy>(
    ctx: &mut StepCtx,
    kernel: &Kernel,
    grid: Grid,
    params: &P,
) -> Result<()> {
    let queue: &mut CudaQueue = ctx.queue_as().expect("kernels of a CUDA device run in its steps");
    // SAFETY: as the caller promises.
    unsafe { queue.launch_kernel(kernel, grid, params) }
}

/// The stream of a step, for libraries that enqueue by themselves. The context is current on this thread.
pub(crate) fn stream(ctx: &mut StepCtx) -> Result<CUstream> {
    let queue: &mut CudaQueue = ctx.queue_as().expect("kernels of a CUDA device run in its steps");
    queue.stream()
}

/// Enqueues a kernel on a stream of the current context; returns the driver's result.
///
/// # Safety
///
/// As [`launch`].
pub(crate) unsafe fn enqueue<P: Copy>(stream: CUstream, kernel: &Kernel, grid: Grid, params: &P) -> u32 {
    let attribute = ffi::LaunchAttribute {
        id: ffi::PROGRAMMATIC_SERIALIZATION,
        padding: 0,
        value: [1, 0, 0, 0, 0, 0, 0, 0],
    };
    let config = ffi::LaunchConfig {
        grid: grid.blocks,
        block: [grid.threads, 1, 1],
        shared_bytes: grid.shared_bytes,
        stream,
        attributes: &attribute,
        num_attributes: u32::from(grid.overlaps),
    };
    let mut params = [parameter(params)];
    // SAFETY: the configuration and the parameters live through the call, which copies them.
    unsafe { ffi::cuLaunchKernelEx(&config, kernel.function(), params.as_mut_ptr(), null_mut()) }
}
