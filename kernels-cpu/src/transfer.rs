//! Swapping blocks: copies inside the memory of the machine.

use std::sync::Arc;

use quire_kernels::{Fence, Result, SwapRows, Tensor, TransferQueue, reached};

use crate::device::{CpuDevice, bytes_of};

/// A queue of copies that are done when the call returns.
pub(crate) struct CpuTransfers {
    device: CpuDevice,
}

impl CpuTransfers {
    pub(crate) fn new(device: &CpuDevice) -> Self {
        Self { device: device.clone() }
    }

    fn copy(&self, from: &Tensor, to: &Tensor) {
        let (from, to) = (bytes_of(from), bytes_of(to));
        let mut session = self.device.session();
        let (_, [from], [to]) = session.open([&from], [&to]);
        to.slice::<u8>().copy_from_slice(from.slice::<u8>());
    }
}

impl TransferQueue for CpuTransfers {
    fn swap_out(&mut self, rows: SwapRows<'_>, _after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        rows.copies().for_each(|(device, host)| self.copy(&device, &host));
        Ok(reached())
    }

    fn swap_in(&mut self, rows: SwapRows<'_>, _after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        rows.copies().for_each(|(device, host)| self.copy(&host, &device));
        Ok(reached())
    }
}
