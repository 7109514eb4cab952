//! The device, and its memory around the inner one's.

use std::any::Any;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

use super::line::WorkedLine;
use super::queue::DeferredQueue;
use super::transfer::DeferredTransfers;
use crate::{Buffer, Device, DeviceId, DeviceInfo, Error, Queue, Result, Tensor, TransferQueue};

#[derive(Clone, Debug)]
pub(super) struct DeferredDevice {
    id: DeviceId,
    info: DeviceInfo,
    inner: Arc<dyn Device>,
    in_step: Arc<ThreadsInStep>,
    max_queued: usize,
}

/// The threads that are inside a step, once for each of their queues that is.
#[derive(Debug, Default)]
pub(super) struct ThreadsInStep(Mutex<Vec<ThreadId>>);

impl ThreadsInStep {
    pub(super) fn enter(&self) -> ThreadId {
        let thread = thread::current().id();
        self.0.lock().push(thread);
        thread
    }

    pub(super) fn leave(&self, thread: ThreadId) {
        let mut threads = self.0.lock();
        if let Some(index) = threads.iter().position(|&t| t == thread) {
            threads.swap_remove(index);
        }
    }

    fn holds_this_thread(&self) -> bool {
        self.0.lock().contains(&thread::current().id())
    }
}

impl DeferredDevice {
    pub(super) fn new(inner: Arc<dyn Device>, max_queued: usize) -> Self {
        let info = inner.info();
        let info = DeviceInfo { name: format!("{}, deferred", info.name), ..info.clone() };
        Self { id: DeviceId::unique(), info, inner, in_step: Arc::default(), max_queued }
    }

    /// # Errors
    ///
    /// [`Error::NotInStep`] where this thread is in a step.
    pub(super) fn check_not_in_step(&self, operation: &'static str) -> Result<()> {
        if self.in_step.holds_this_thread() { Err(Error::NotInStep { operation }) } else { Ok(()) }
    }
}

impl Device for DeferredDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn used_bytes(&self) -> Option<usize> {
        self.inner.used_bytes()
    }

    fn free_bytes(&self) -> usize {
        self.inner.free_bytes()
    }

    fn allocate(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.check_not_in_step("allocate")?;
        Ok(Arc::new(DeferredBuffer { inner: self.inner.allocate(num_bytes)?, device: self.id }))
    }

    fn reserve(&self, num_bytes: usize) -> Result<()> {
        self.inner.reserve(num_bytes)
    }

    fn finish_loading(&self) {
        self.inner.finish_loading();
    }

    fn give_back_freed_memory(&self) {
        self.inner.give_back_freed_memory();
    }

    fn num_allocations(&self) -> u64 {
        self.inner.num_allocations()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let line = WorkedLine::start(self.inner.clone(), self.max_queued)?;
        Ok(Box::new(DeferredQueue::new(line, self.in_step.clone())))
    }

    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.check_not_in_step("allocate")?;
        Ok(Arc::new(DeferredHostBuffer { inner: self.inner.host_memory(num_bytes)?, device: self.id }))
    }

    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        let line = WorkedLine::start(self.inner.clone(), self.max_queued)?;
        Ok(Box::new(DeferredTransfers::new(self.clone(), self.inner.transfers()?, line)))
    }
}

#[derive(Debug)]
struct DeferredBuffer {
    inner: Arc<dyn Buffer>,
    device: DeviceId,
}

impl Buffer for DeferredBuffer {
    fn num_bytes(&self) -> usize {
        self.inner.num_bytes()
    }

    fn device(&self) -> DeviceId {
        self.device
    }
}

/// Memory of the host: a type of its own, so that no kernel takes it, even where the inner device's would.
#[derive(Debug)]
struct DeferredHostBuffer {
    inner: Arc<dyn Buffer>,
    device: DeviceId,
}

impl Buffer for DeferredHostBuffer {
    fn num_bytes(&self) -> usize {
        self.inner.num_bytes()
    }

    fn device(&self) -> DeviceId {
        self.device
    }
}

/// The inner device's view of the same memory.
///
/// # Panics
///
/// Where the tensor belongs to another device.
pub(super) fn inner_tensor(tensor: &Tensor) -> Tensor {
    let buffer: &dyn Any = tensor.buffer().as_ref();
    let buffer: &DeferredBuffer = buffer.downcast_ref().expect("a tensor of the deferred device");
    tensor.over(buffer.inner.clone())
}

/// As [`inner_tensor`], of host memory.
pub(super) fn inner_host_tensor(tensor: &Tensor) -> Tensor {
    let buffer: &dyn Any = tensor.buffer().as_ref();
    let buffer: &DeferredHostBuffer = buffer.downcast_ref().expect("host memory of the deferred device");
    tensor.over(buffer.inner.clone())
}
