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

#[cfg(test)]
mod tests {
    use quire_kernels::{DType, Device, StepCtx, Tensor};

    use super::*;
    use crate::copy::RowCopies;
    use crate::device::CudaDevice;
    use crate::testing::gpu;

    fn bytes(device: &CudaDevice, dims: &[usize]) -> Tensor {
        Tensor::new(device.allocate(dims.iter().product()).unwrap(), 0, DType::U8, dims)
    }

    /// Launches `copy_rows` for pairs that lie in device memory.
    fn copy(ctx: &mut StepCtx, kernel: &Kernel, rows: &Tensor, pairs: &Tensor) -> Result<()> {
        let (grid, params) = RowCopies::of(rows, &[]).launch(crate::memory::address(pairs), pairs.num_rows());
        // SAFETY: the parameters are the kernel's; the tests write pairs of rows that are there.
        unsafe { launch(ctx, kernel, grid, &params) }
    }

    #[test]
    fn a_recorded_launch_reads_what_its_tensors_hold_when_it_runs() {
        let Some(device) = gpu() else { return };
        let rows = bytes(&device, &[8, 48]);
        let pairs = bytes(&device, &[2, 8]);
        let mut ctx = StepCtx::new(device.as_ref(), 1 << 20).unwrap();
        let kernel = device.kernel("copy", "copy_rows").unwrap();
        let graph = ctx.capture(|ctx| copy(ctx, &kernel, &rows, &pairs)).unwrap().unwrap();
        let mut model: Vec<u8> = (0..8 * 48).map(|i| i as u8).collect();
        ctx.write(&rows, &model).unwrap();
        for round in 0..100u32 {
            let [a, b, c, d] = [0, 1, 3, 6].map(|i| (i + round) % 8);
            ctx.write(&pairs, &[a, b, c, d].map(u32::to_le_bytes).concat()).unwrap();
            ctx.launch(graph.as_ref()).unwrap();
            for (from, to) in [(a, b), (c, d)] {
                let from = from as usize * 48;
                model.copy_within(from..from + 48, to as usize * 48);
            }
        }
        assert_eq!(ctx.read(&rows).unwrap().wait().unwrap(), model);
        println!("the graph takes {} bytes", graph.num_bytes());
    }

    #[test]
    fn a_grid_without_blocks_launches_nothing() {
        let Some(device) = gpu() else { return };
        let (rows, pairs) = (bytes(&device, &[8, 48]), bytes(&device, &[2, 8]));
        let mut ctx = StepCtx::new(device.as_ref(), 1 << 20).unwrap();
        let kernel = device.kernel("copy", "copy_rows").unwrap();
        copy(&mut ctx, &kernel, &rows, &pairs.rows(0, 0)).unwrap();
        ctx.synchronize().unwrap();
    }

    #[test]
    fn a_launch_that_cannot_be_is_an_error_and_the_device_goes_on() {
        let Some(device) = gpu() else { return };
        let kernel = device.kernel("copy", "copy_writes").unwrap();
        let mut ctx = StepCtx::new(device.as_ref(), 1 << 20).unwrap();
        let grid = Grid { blocks: [1; 3], threads: 4096, shared_bytes: 0, overlaps: false };
        // SAFETY: the driver refuses so many threads.
        let refused = unsafe { launch(&mut ctx, &kernel, grid, &[0u64; 96]) };
        assert!(refused.unwrap_err().to_string().contains("CUDA_ERROR_INVALID_VALUE"));
        ctx.synchronize().unwrap();
    }

    #[test]
    fn a_kernel_that_is_not_there_is_an_error_that_names_it() {
        let Some(device) = gpu() else { return };
        let missing = device.kernel("copy", "copy_nothing").err().unwrap();
        assert!(missing.to_string().contains("no kernel copy_nothing"), "{missing}");
        let missing = device.kernel("nothing", "copy_rows").err().unwrap();
        assert!(missing.to_string().contains("cargo xtask build-kernels --arch"), "{missing}");
    }

    #[test]
    fn more_shared_memory_than_there_is_cannot_be_allowed() {
        let Some(device) = gpu() else { return };
        let kernel = device.kernel("copy", "copy_rows").unwrap();
        kernel.allow_shared_bytes(device.max_shared_bytes()).unwrap();
        assert!(kernel.allow_shared_bytes(device.max_shared_bytes() + 1).is_err());
    }
}
