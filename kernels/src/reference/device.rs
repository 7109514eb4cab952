//! The host as a device that executes at once.

use std::sync::Arc;

use super::memory::{Account, HostBuffer, load_bytes, store_bytes};
use super::{backend_name, device_name};
use crate::{
    Buffer, DType, Device, DeviceId, DeviceInfo, Error, Fence, Graph, Queue, Readback, Result, SwapRows,
    Tensor, TransferQueue, reached,
};

/// Host memory with an account.
#[derive(Debug)]
pub(super) struct HostDevice {
    id: DeviceId,
    info: DeviceInfo,
    account: Arc<Account>,
}

impl HostDevice {
    pub(super) fn new(total_bytes: usize) -> Self {
        let info = DeviceInfo {
            backend: backend_name().to_owned(),
            name: "host, f64".to_owned(),
            total_bytes,
            activation_dtype: DType::F32,
            residual_dtype: DType::F32,
        };
        Self { id: DeviceId::unique(), info, account: Arc::new(Account::new(total_bytes)) }
    }
}

impl Device for HostDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> usize {
        self.account.free_bytes()
    }

    fn allocate(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        match HostBuffer::new(self.id, &self.account, num_bytes) {
            Some(buffer) => Ok(Arc::new(buffer)),
            None => Err(Error::OutOfMemory {
                device: device_name(self.id),
                wanted_bytes: num_bytes,
                free_bytes: self.free_bytes(),
            }),
        }
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(HostQueue { in_step: false }))
    }

    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.allocate(num_bytes)
    }

    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        Ok(Box::new(HostTransfers))
    }
}

/// Copies in the call.
struct HostTransfers;

impl TransferQueue for HostTransfers {
    fn swap_out(&mut self, rows: SwapRows<'_>, _after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        rows.copies().for_each(|(device, host)| store_bytes(&host, &load_bytes(&device)));
        Ok(reached())
    }

    fn swap_in(&mut self, rows: SwapRows<'_>, _after: &dyn Fence) -> Result<Arc<dyn Fence>> {
        rows.copies().for_each(|(device, host)| store_bytes(&device, &load_bytes(&host)));
        Ok(reached())
    }
}

/// Executes in the call.
struct HostQueue {
    in_step: bool,
}

impl Queue for HostQueue {
    fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        store_bytes(dst, bytes);
        Ok(())
    }

    fn read(&mut self, src: &Tensor) -> Result<Readback> {
        if self.in_step {
            return Err(Error::NotInStep { operation: "read back" });
        }
        Ok(Readback::ready(load_bytes(src)))
    }

    fn copy_rows(&mut self, tensor: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
        let row = |i: u32| tensor.rows(i as usize, i as usize + 1);
        for &(from, to) in pairs {
            store_bytes(&row(to), &load_bytes(&row(from)));
        }
        Ok(())
    }

    fn set_in_step(&mut self, in_step: bool) {
        self.in_step = in_step;
    }

    fn launch(&mut self, _graph: &dyn Graph) -> Result<()> {
        unreachable!("a device without graphs hands none out, so none of them can come back")
    }

    fn fence(&mut self) -> Result<Arc<dyn Fence>> {
        Ok(reached())
    }

    fn wait_for(&mut self, _fence: &dyn Fence) -> Result<()> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}
