//! Swapping of blocks: a stream of its own.
//!
//! Long runs of rows are copied by the device's copy engines, which take nothing from the steps beside them. Each such
//! copy costs microseconds whatever its size, so rows that are scattered are moved by one kernel instead, on a few of
//! the device's processors, which reads and writes the host's memory by itself.
//!
//! Measured on an H200, GB/s to the host, for 28 layers of 32 blocks of 32 KiB: the kernel 51, whatever the runs; copies of
//! 128 KiB 28, of 256 KiB 39, of 1 MiB 48, of 16 MiB 55.

use std::sync::Arc;

use cust::stream::{Stream, StreamFlags};
use quire_kernels::{Fence, Result, SwapLayer, SwapRows, SwapRun, Tensor, TransferQueue};

use crate::fence::CudaFence;
use crate::ffi;
use crate::host::host_address;
use crate::launch::{Grid, enqueue};
use crate::memory::address;
use crate::queue::QueueParts;

/// Layers and pairs of a launch at most: kernel parameters are 4 KiB.
const MAX_LAYERS: usize = 96;
const MAX_PAIRS: usize = 256;

/// Threads a block of `swap_rows`.
const THREADS: u32 = 512;

/// Blocks of `swap_rows`: as few as keep the link busy.
const MAX_BLOCKS: usize = 16;

/// Bytes of a copy from which on the copy engines do it: then they are as fast, and the processors are left alone.
const MIN_COPY_BYTES: usize = 1 << 20;

/// Which way rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToHost,
    ToDevice,
}

/// A stream of transfers.
pub(crate) struct CudaTransfers {
    parts: Arc<QueueParts>,
    stream: Stream,
}

impl CudaTransfers {
    pub(crate) fn new(parts: Arc<QueueParts>) -> Result<Self> {
        parts.context.bind()?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None)
            .map_err(|error| parts.context.failed("cuStreamCreateWithPriority", error))?;
        Ok(Self { parts, stream })
    }

    fn swap(&self, rows: SwapRows<'_>, after: &dyn Fence, direction: Direction) -> Result<Arc<dyn Fence>> {
        rows.check();
        self.parts.context.bind()?;
        CudaFence::hold_back(after, self.stream.as_inner())?;
        let num_runs = SwapRun::merge(rows.pairs).len().max(1);
        let (scattered, long): (Vec<_>, Vec<_>) =
            rows.layers.iter().cloned().partition(|layer| is_scattered(layer, rows.pairs.len() / num_runs));
        for (device, host) in (SwapRows { layers: &long, ..rows }).copies() {
            self.copy(&device, &host, direction)?;
        }
        for layers in scattered.chunk_by(|a, b| a.device.num_columns() == b.device.num_columns()) {
            self.gather(layers, rows.pairs, direction)?;
        }
        CudaFence::set(&self.parts.context, self.stream.as_inner())
    }

    /// One copy of the device's copy engines.
    fn copy(&self, device: &Tensor, host: &Tensor, direction: Direction) -> Result<()> {
        let (stream, num_bytes) = (self.stream.as_inner(), device.span_bytes());
        let (device, host) = (address(device), host_address(host));
        if num_bytes == 0 {
            return Ok(());
        }
        let context = &self.parts.context;
        match direction {
            // SAFETY: both sides were checked to lie in live buffers of so many bytes, which are not freed before
            // the device is idle; that nobody else touches them meanwhile is what the caller owes.
            Direction::ToHost => context.check("cuMemcpyDtoHAsync", unsafe {
                ffi::cuMemcpyDtoHAsync_v2(host as *mut _, device, num_bytes, stream)
            }),
            // SAFETY: as above.
            Direction::ToDevice => context.check("cuMemcpyHtoDAsync", unsafe {
                ffi::cuMemcpyHtoDAsync_v2(device, host as *const _, num_bytes, stream)
            }),
        }
    }

    /// Rows of layers alike, by kernels.
    fn gather(&self, layers: &[SwapLayer], pairs: &[(u32, u32)], direction: Direction) -> Result<()> {
        for layers in layers.chunks(MAX_LAYERS) {
            for pairs in pairs.chunks(MAX_PAIRS) {
                let params = SwapRowsParams::new(layers, pairs, direction);
                let num_blocks = (layers.len() * pairs.len()).min(MAX_BLOCKS);
                let blocks = [num_blocks as u32, 1, 1];
                let grid = Grid { blocks, threads: THREADS, shared_bytes: 0, overlaps: false };
                let kernel = &self.parts.copies.swaps;
                // SAFETY: as in `copy`; rows and addresses are multiples of 16 bytes.
                let code = unsafe { enqueue(self.stream.as_inner(), kernel, grid, &params) };
                self.parts.context.check("cuLaunchKernelEx", code)?;
            }
        }
        Ok(())
    }
}

/// Whether a kernel moves a layer's rows, of which so many follow each other.
fn is_scattered(layer: &SwapLayer, rows_a_run: usize) -> bool {
    let row_bytes =
        layer.device.dtype().bytes_for(layer.device.num_columns()).expect("a row of whole blocks");
    let is_aligned = |n: u64| n.is_multiple_of(16);
    row_bytes * rows_a_run < MIN_COPY_BYTES
        && row_bytes > 0
        && [row_bytes as u64, address(&layer.device), host_address(&layer.host)].into_iter().all(is_aligned)
}

impl TransferQueue for CudaTransfers {
    fn swap_out(&mut self, rows: SwapRows<'_>, after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        self.swap(rows, after, Direction::ToHost)
    }

    fn swap_in(&mut self, rows: SwapRows<'_>, after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        self.swap(rows, after, Direction::ToDevice)
    }
}

impl Drop for CudaTransfers {
    fn drop(&mut self) {
        if self.parts.context.bind().is_ok() {
            // SAFETY: the stream lives. A lost device has nothing to wait for.
            unsafe { ffi::cuStreamSynchronize(self.stream.as_inner()) };
        }
    }
}

/// `SwapRowsParams` of `cuda/swap.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SwapRowsParams {
    /// Addresses on the device and on the host.
    layers: [[u64; 2]; MAX_LAYERS],
    pairs: [[u32; 2]; MAX_PAIRS],
    row_bytes: u64,
    num_layers: u32,
    num_pairs: u32,
    to_host: u32,
    padding: u32,
}

impl SwapRowsParams {
    fn new(layers: &[SwapLayer], pairs: &[(u32, u32)], direction: Direction) -> Self {
        let mut params = Self {
            layers: [[0; 2]; MAX_LAYERS],
            pairs: [[0; 2]; MAX_PAIRS],
            row_bytes: layers[0].device.rows(0, 1).span_bytes() as u64,
            num_layers: layers.len() as u32,
            num_pairs: pairs.len() as u32,
            to_host: u32::from(direction == Direction::ToHost),
            padding: 0,
        };
        for (slot, layer) in params.layers.iter_mut().zip(layers) {
            *slot = [address(&layer.device), host_address(&layer.host)];
        }
        for (slot, &(device_row, host_row)) in params.pairs.iter_mut().zip(pairs) {
            *slot = [device_row, host_row];
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_are_as_long_as_a_kernel_takes() {
        assert!(size_of::<SwapRowsParams>() <= 4096, "{}", size_of::<SwapRowsParams>());
        assert_eq!(size_of::<SwapRowsParams>(), MAX_LAYERS * 16 + MAX_PAIRS * 8 + 24);
    }
}
