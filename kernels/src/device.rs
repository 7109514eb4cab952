//! Devices, queues and captured graphs.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Buffer, DType, Error, Fence, Result, Tensor, TransferQueue};

/// Tells the devices of one process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(u64);

impl DeviceId {
    /// The id of that number.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// An id that no other call of this process returns.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The backend's name, `cpu` or `cuda`.
    pub backend: String,
    /// The hardware in words, with the instruction sets or the compute capability in use.
    pub name: String,
    /// Memory that this process may use there.
    pub total_bytes: usize,
    /// The dtype of activations between kernels.
    pub activation_dtype: DType,
    /// The dtype of the residual stream, to which each block adds. A wider one than the activations' keeps what the
    /// layers before have added: rounding there is what most of a 16-bit model's error comes from.
    pub residual_dtype: DType,
}

/// Memory and queues.
///
/// A device executes the work of each queue in the order in which it was enqueued, perhaps long after the call
/// returned. Kernels only take tensors of their own device.
pub trait Device: Send + Sync + fmt::Debug {
    /// Which device this is.
    fn id(&self) -> DeviceId;

    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Bytes that can still be allocated, as the device sees it now.
    fn free_bytes(&self) -> usize;

    /// Bytes of the device that are taken now, whoever took them; `None` where its memory is that of the process.
    fn used_bytes(&self) -> Option<usize> {
        None
    }

    /// Zero-filled memory, aligned to 64 bytes or better, freed when the last handle is dropped.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    fn allocate(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>>;

    /// Takes `num_bytes` at once, out of which all later allocations come: after it a device with memory of its
    /// own takes none, and what the plan has no room for is refused. A device whose memory is the process's does
    /// nothing. A second call replaces a reservation in which nothing lives.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    fn reserve(&self, num_bytes: usize) -> Result<()> {
        let _ = num_bytes;
        Ok(())
    }

    /// Gives back what only loading needed: buffers that copies of weights go through, say.
    fn finish_loading(&self) {}

    /// Gives memory back to the system that the process has freed and its allocator keeps, on a device whose memory is the
    /// process's: what a tokenizer was made from, say, before weights come on top of it.
    fn give_back_freed_memory(&self) {}

    /// How many calls of [`allocate`](Self::allocate) there were, on a device that counts them: what a test
    /// compares that wants to see that steps allocate nothing.
    fn num_allocations(&self) -> u64 {
        0
    }

    /// A new queue.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn queue(&self) -> Result<Box<dyn Queue>>;

    /// Memory of the host that [`transfers`](Self::transfers) reach, and nothing else: a space for blocks that are
    /// swapped out. Pinned where that is faster, which takes the host a while: a second for several gigabytes. Its
    /// contents are undefined.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory); [`Unsupported`](crate::Error::Unsupported) where the backend swaps
    /// nothing.
    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        let _ = num_bytes;
        Err(swaps_nothing(self.info()))
    }

    /// A queue of its own for blocks that are swapped, beside those of steps.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost); [`Unsupported`](crate::Error::Unsupported) where the backend swaps
    /// nothing.
    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        Err(swaps_nothing(self.info()))
    }
}

fn swaps_nothing(info: &DeviceInfo) -> Error {
    Error::Unsupported {
        backend: info.backend.clone(),
        part: "device",
        what: "swapping of blocks".to_owned(),
    }
}

/// An ordered run of work on one device. A device that executes at once (the CPU) has done the work when the
/// call returns; nobody may count on it.
pub trait Queue: Any + Send {
    /// Enqueues a copy of `bytes` to the contiguous tensor `dst`. The bytes are taken before the call returns.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()>;

    /// Enqueues a copy of the contiguous tensor `src` to the host.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost); [`NotInStep`](crate::Error::NotInStep) where the device
    /// enforces it.
    fn read(&mut self, src: &Tensor) -> Result<Readback>;

    /// Enqueues copies of whole rows inside `tensor` (`[num_blocks, block_bytes]`), `(from, to)` each. The
    /// pairs are independent of each other: no row is the target of one and part of another.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn copy_rows(&mut self, tensor: &Tensor, pairs: &[(u32, u32)]) -> Result<()>;

    /// Marks the start or the end of what may be captured: between the two, nothing allocates or reads back.
    fn set_in_step(&mut self, in_step: bool);

    /// Starts recording instead of executing. A device without graphs does nothing and goes on executing.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn begin_capture(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends the recording: the graph, or `None` where the device has none and the work was executed.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn end_capture(&mut self) -> Result<Option<Box<dyn Graph>>> {
        Ok(None)
    }

    /// Enqueues a recorded graph. It reads what the tensors hold when it runs.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn launch(&mut self, graph: &dyn Graph) -> Result<()>;

    /// Marks this place of the queue, to measure the time between two marks. `None` where the device has no clock
    /// of its own.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost).
    fn mark(&mut self) -> Result<Option<Box<dyn Mark>>> {
        Ok(None)
    }

    /// A fence behind all that was enqueued so far. Outside of steps.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost); [`NotInStep`](crate::Error::NotInStep) where the device enforces it.
    fn fence(&mut self) -> Result<Arc<dyn Fence>>;

    /// What is enqueued from now on starts once a fence of the same device is reached; the host does not wait.
    /// Outside of steps.
    ///
    /// # Errors
    ///
    /// As [`fence`](Self::fence).
    fn wait_for(&mut self, fence: &dyn Fence) -> Result<()>;

    /// Starts a range of host time that a profiler shows by this name, inside of those that are open; ended by
    /// [`close_range`](Self::close_range) on the same thread. Nothing where nobody listens.
    fn open_range(&mut self, name: fmt::Arguments<'_>) {
        let _ = name;
    }

    /// Ends the innermost open range.
    fn close_range(&mut self) {}

    /// Waits until all that was enqueued has been executed.
    ///
    /// # Errors
    ///
    /// The first error of what was enqueued.
    fn synchronize(&mut self) -> Result<()>;

    /// The queue that this one decorates, so that parts find their own behind it
    /// ([`StepCtx::queue_as`](crate::StepCtx::queue_as)).
    fn decorated(&mut self) -> Option<&mut dyn Queue> {
        None
    }
}

/// A place in a queue, by the device's clock.
pub trait Mark: Any + Send + Sync {
    /// Time that passed on the device from `earlier`, a mark of the same queue, to this one; `None` while the device
    /// has not come to both.
    fn since(&self, earlier: &dyn Mark) -> Option<Duration>;
}

/// Recorded work of one [`ShapeKey`](crate::ShapeKey), replayed with the values that its tensors hold then.
pub trait Graph: Any + Send {
    /// Device memory that the recording holds.
    fn num_bytes(&self) -> usize;
}

/// Bytes on their way from the device.
pub struct Readback {
    pending: Box<dyn PendingRead>,
}

/// The backend's side of a [`Readback`].
pub trait PendingRead: Send {
    /// Waits for the copy and returns it.
    ///
    /// # Errors
    ///
    /// The first error of the work that was enqueued before it.
    fn wait(self: Box<Self>) -> Result<Vec<u8>>;
}

impl Readback {
    /// Wraps what the backend waits for.
    pub fn new(pending: Box<dyn PendingRead>) -> Self {
        Self { pending }
    }

    /// A copy that is here already.
    pub fn ready(bytes: Vec<u8>) -> Self {
        struct Ready(Vec<u8>);
        impl PendingRead for Ready {
            fn wait(self: Box<Self>) -> Result<Vec<u8>> {
                Ok(self.0)
            }
        }
        Self::new(Box::new(Ready(bytes)))
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    ///
    /// The first error of the work that was enqueued before the copy.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.pending.wait()
    }

    /// Waits and reads the bytes as values of type `T`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_as<T: bytemuck::Pod>(self) -> Result<Vec<T>> {
        Ok(bytemuck::allocation::pod_collect_to_vec(&self.wait()?))
    }
}

impl fmt::Debug for Readback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readback")
    }
}
