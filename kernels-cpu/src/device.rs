//! The device: memory, threads and queues that execute at once.

use std::sync::Arc;

use parking_lot::Mutex;
use quire_kernels::{
    Buffer, DType, Device, DeviceId, DeviceInfo, Error, Fence, Graph, Queue, Readback, Result, StepCtx,
    Tensor, TransferQueue, reached,
};

use crate::Isa;
use crate::access::Session;
use crate::buffer::CpuBuffer;
use crate::machine;
use crate::pool::Pool;
use crate::transfer::CpuTransfers;

/// Name of the backend and, in errors, of the device.
pub(crate) const BACKEND: &str = "cpu";

/// Processors and memory of this machine as one device. Operations run when they are called, one at a time.
#[derive(Clone, Debug)]
pub(crate) struct CpuDevice {
    inner: Arc<Inner>,
}

struct Inner {
    id: DeviceId,
    info: DeviceInfo,
    isa: Isa,
    pool: Mutex<Pool>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cpu{}", self.id)
    }
}

impl CpuDevice {
    /// A device of `threads` threads, the caller of an operation included.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceLost`] where the system refuses the threads.
    pub(crate) fn new(threads: usize, isa: Isa) -> Result<Self> {
        let pool = Pool::new(threads)
            .map_err(|e| Error::DeviceLost { device: BACKEND.to_owned(), reason: e.to_string() })?;
        let info = DeviceInfo {
            backend: BACKEND.to_owned(),
            name: format!("{} ({isa}, {} threads)", machine::cpu_name(), pool.threads()),
            total_bytes: machine::total_bytes(),
            activation_dtype: DType::F32,
            residual_dtype: DType::F32,
        };
        Ok(Self { inner: Arc::new(Inner { id: DeviceId::unique(), info, isa, pool: Mutex::new(pool) }) })
    }

    /// The device that a context works on, if it is one of this backend.
    pub(crate) fn of(ctx: &mut StepCtx) -> Option<Self> {
        ctx.queue_as::<CpuQueue>().map(|queue| queue.device.clone())
    }

    /// The instructions that kernels use.
    pub(crate) fn isa(&self) -> Isa {
        self.inner.isa
    }

    /// The right to run an operation; waits for the one that is running.
    pub(crate) fn session(&self) -> Session<'_> {
        Session::new(self.inner.pool.lock(), self.inner.id)
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.inner.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    fn free_bytes(&self) -> usize {
        machine::free_bytes()
    }

    fn allocate(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(CpuBuffer::new(self.id(), num_bytes)?))
    }

    fn finish_loading(&self) {
        self.give_back_freed_memory();
    }

    fn give_back_freed_memory(&self) {
        machine::give_back_freed_bytes();
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CpuQueue { device: self.clone(), in_step: false }))
    }

    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.allocate(num_bytes)
    }

    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        Ok(Box::new(CpuTransfers::new(self)))
    }
}

/// A queue whose work is done when the call returns.
struct CpuQueue {
    device: CpuDevice,
    in_step: bool,
}

impl Queue for CpuQueue {
    fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        let dst = bytes_of(dst);
        let mut session = self.device.session();
        let (_, [], [dst]) = session.open([], [&dst]);
        dst.slice::<u8>().copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, src: &Tensor) -> Result<Readback> {
        if self.in_step {
            return Err(Error::NotInStep { operation: "read back" });
        }
        let src = bytes_of(src);
        let mut session = self.device.session();
        let (_, [src], []) = session.open([&src], []);
        Ok(Readback::ready(src.slice::<u8>().to_vec()))
    }

    fn copy_rows(&mut self, tensor: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
        let row_bytes = tensor.dtype().bytes_for(tensor.num_columns()).expect("a row holds whole blocks");
        let tensor = bytes_of(tensor);
        let mut session = self.device.session();
        let (_, [], [bytes]) = session.open([], [&tensor]);
        let bytes = bytes.slice::<u8>();
        for (from, to) in pairs.iter().map(|&(from, to)| (from as usize, to as usize)) {
            bytes.copy_within(from * row_bytes..(from + 1) * row_bytes, to * row_bytes);
        }
        Ok(())
    }

    fn set_in_step(&mut self, in_step: bool) {
        self.in_step = in_step;
    }

    fn launch(&mut self, _graph: &dyn Graph) -> Result<()> {
        unreachable!("a queue that never records has no graph to launch")
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

/// The bytes of a contiguous tensor.
pub(crate) fn bytes_of(tensor: &Tensor) -> Tensor {
    assert!(tensor.is_contiguous(), "{tensor:?} is not contiguous");
    Tensor::new(tensor.buffer().clone(), tensor.offset_bytes(), DType::U8, &[tensor.span_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_copied_and_read() {
        let device = CpuDevice::new(2, Isa::Scalar).unwrap();
        let rows = Tensor::new(device.allocate(12).unwrap(), 0, DType::U8, &[4, 3]);
        let mut queue = device.queue().unwrap();
        queue.write(&rows, &[1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]).unwrap();
        queue.copy_rows(&rows, &[(0, 2), (1, 3)]).unwrap();
        let bytes = queue.read(&rows).unwrap().wait().unwrap();
        assert_eq!(bytes, [1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn nothing_is_read_back_inside_a_step() {
        let device = CpuDevice::new(1, Isa::Scalar).unwrap();
        let x = Tensor::new(device.allocate(4).unwrap(), 0, DType::F32, &[1]);
        let mut queue = device.queue().unwrap();
        queue.set_in_step(true);
        assert!(matches!(queue.read(&x), Err(Error::NotInStep { .. })));
        queue.set_in_step(false);
        assert!(queue.read(&x).is_ok());
    }
}
