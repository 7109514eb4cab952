//! Blocks that are kept on the host for a while.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quire_kernels::{DType, Device, Fence, Result, StepCtx, SwapLayer, SwapRows, Tensor, TransferQueue};

use crate::{BlockTransfer, KvPool, SwapDirection};

/// The swap space of a pool: host memory with the same rows of bytes a block as the pool has, layer by layer.
#[derive(Clone, Debug)]
pub(crate) struct SwapSpace {
    layers: Vec<SwapLayer>,
    num_blocks: usize,
}

impl SwapSpace {
    /// Takes the memory.
    ///
    /// # Errors
    ///
    /// Where the host has not enough of it, or the backend swaps nothing.
    pub(crate) fn new(device: &dyn Device, pool: &KvPool, num_blocks: usize) -> Result<Self> {
        let block_bytes = pool.layers().iter().map(|layer| layer.blocks.num_columns());
        let memory = device.host_memory(num_blocks * block_bytes.sum::<usize>())?;
        let mut offset_bytes = 0;
        let layers = pool.layers().iter().map(|layer| {
            let dims = [num_blocks, layer.blocks.num_columns()];
            let host = Tensor::new(Arc::clone(&memory), offset_bytes, DType::U8, &dims);
            offset_bytes += host.span_bytes();
            SwapLayer { device: layer.blocks.clone(), host }
        });
        Ok(Self { layers: layers.collect(), num_blocks })
    }
}

/// A transfer that was started.
struct OpenTransfer {
    step: u64,
    id: u64,
    fence: Arc<dyn Fence>,
}

/// Transfers that were started and that nobody has been told are done; they end in their order.
#[derive(Clone, Default)]
pub(crate) struct OpenTransfers(Arc<Mutex<VecDeque<OpenTransfer>>>);

impl fmt::Debug for OpenTransfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|open| open.id)).finish()
    }
}

impl OpenTransfers {
    /// Those that are done, among the ones that came with `step` or before; `wait` waits for all of these.
    ///
    /// # Errors
    ///
    /// Where the device is lost.
    pub(crate) fn take_done(&self, step: u64, wait: bool) -> Result<Vec<u64>> {
        let mut open = self.0.lock();
        let mut done = Vec::new();
        while let Some(first) = open.front().filter(|first| first.step <= step) {
            if wait {
                first.fence.wait()?;
            } else if !first.fence.is_reached()? {
                break;
            }
            done.push(first.id);
            open.pop_front();
        }
        Ok(done)
    }
}

/// Moves blocks between a pool and its swap space, beside the steps.
pub(crate) struct Swapper {
    space: SwapSpace,
    queue: Box<dyn TransferQueue>,
    open: OpenTransfers,
    bytes_per_s: u64,
}

/// Bytes that the rate is measured on, at most.
const MEASURED_BYTES: usize = 32 << 20;

impl Swapper {
    /// Measures how fast blocks move: some go to the host and come back to where they were. What they hold does not
    /// change; nobody else may use the pool meanwhile.
    ///
    /// # Errors
    ///
    /// Where the device does not come up to it.
    pub(crate) fn start(device: &dyn Device, space: SwapSpace, ctx: &mut StepCtx) -> Result<Self> {
        let mut queue = device.transfers()?;
        let layer_bytes = |layer: &SwapLayer| layer.device.num_columns();
        let block_bytes: usize = space.layers.iter().map(layer_bytes).sum();
        let pool_blocks = space.layers.iter().map(|layer| layer.device.num_rows()).min().unwrap_or(0);
        let num_blocks = (MEASURED_BYTES / block_bytes.max(1)).max(1).min(space.num_blocks).min(pool_blocks);
        let pairs: Vec<_> = (0..num_blocks as u32).map(|block| (block, block)).collect();
        let rows = SwapRows { layers: &space.layers, pairs: &pairs };
        ctx.synchronize()?;
        let mut elapsed = Duration::ZERO;
        // The first round touches memory for the first time, and is not counted.
        for _ in 0..2 {
            let started = Instant::now();
            queue.swap_out(rows, ctx.queue().fence()?.as_ref())?.wait()?;
            queue.swap_in(rows, ctx.queue().fence()?.as_ref())?.wait()?;
            elapsed = started.elapsed();
        }
        let num_bytes = 2 * num_blocks * block_bytes;
        let bytes_per_s = (num_bytes as f64 / elapsed.as_secs_f64().max(1e-9)) as u64;
        tracing::info!(
            target: "quire::executor",
            "swap space of {} blocks, moved at {:.2} GB/s", space.num_blocks, bytes_per_s as f64 / 1e9
        );
        Ok(Self { space, queue, open: OpenTransfers::default(), bytes_per_s })
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.space.num_blocks
    }

    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    pub(crate) fn open(&self) -> &OpenTransfers {
        &self.open
    }

    /// Starts a transfer behind what has been enqueued so far.
    pub(crate) fn transfer(&mut self, ctx: &mut StepCtx, step: u64, transfer: &BlockTransfer) -> Result<()> {
        let rows = SwapRows { layers: &self.space.layers, pairs: &transfer.blocks };
        let after = ctx.queue().fence()?;
        let fence = match transfer.direction {
            SwapDirection::Out => self.queue.swap_out(rows, after.as_ref())?,
            SwapDirection::In => self.queue.swap_in(rows, after.as_ref())?,
        };
        self.open.0.lock().push_back(OpenTransfer { step, id: transfer.id, fence });
        Ok(())
    }
}
