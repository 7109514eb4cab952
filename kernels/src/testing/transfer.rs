//! Swapping of blocks, on a thread of its own.

use std::sync::Arc;

use parking_lot::Mutex;

use super::device::{DeferredDevice, inner_host_tensor, inner_tensor};
use super::enqueue::poison;
use super::fence::DeferredFence;
use super::line::WorkedLine;
use super::worker::{Command, Work};
use crate::{Fence, Result, SwapLayer, SwapRows, TransferQueue};

pub(super) struct DeferredTransfers {
    device: DeferredDevice,
    inner: Arc<Mutex<Box<dyn TransferQueue>>>,
    line: WorkedLine,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    In,
}

impl DeferredTransfers {
    pub(super) fn new(device: DeferredDevice, inner: Box<dyn TransferQueue>, line: WorkedLine) -> Self {
        Self { device, inner: Arc::new(Mutex::new(inner)), line }
    }

    fn swap(&self, rows: SwapRows<'_>, after: &dyn Fence, direction: Direction) -> Result<Arc<dyn Fence>> {
        self.device.check_not_in_step("swap blocks")?;
        rows.check();
        self.line.push(Command::WaitFor(DeferredFence::of(after)));
        let (layers, pairs) = (rows.layers.iter().map(on_inner).collect::<Vec<_>>(), rows.pairs.to_vec());
        let inner = self.inner.clone();
        self.line.push(Command::Work(Work::copy(move |ctx| {
            let rows = SwapRows { layers: &layers, pairs: &pairs };
            if direction == Direction::In {
                rows.copies().try_for_each(|(device, _)| poison(ctx, &device))?;
            }
            let after = ctx.queue().fence()?;
            let swapped = match direction {
                Direction::Out => inner.lock().swap_out(rows, after.as_ref()),
                Direction::In => inner.lock().swap_in(rows, after.as_ref()),
            };
            swapped?.wait()
        })));
        Ok(DeferredFence::set(&self.line))
    }
}

fn on_inner(layer: &SwapLayer) -> SwapLayer {
    SwapLayer { device: inner_tensor(&layer.device), host: inner_host_tensor(&layer.host) }
}

impl TransferQueue for DeferredTransfers {
    fn swap_out(&mut self, rows: SwapRows<'_>, after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        self.swap(rows, after, Direction::Out)
    }

    fn swap_in(&mut self, rows: SwapRows<'_>, after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        self.swap(rows, after, Direction::In)
    }
}
