//! What every kernel call gets: the queue and the step's scratch memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{Buffer, DType, Device, Error, Graph, Queue, Readback, Result, Tensor};

/// Scratch views start at multiples of this many bytes.
const SCRATCH_ALIGN: usize = 256;

/// The surroundings of a step: a queue, and an arena for what lives no longer than the step.
///
/// The arena hands out views by counting upwards, so a step of the same shapes gets the same addresses: that is
/// what lets a captured step be replayed. Since a queue executes in order, memory given back at the end of a
/// [`scope`](Self::scope) may be handed out again at once.
pub struct StepCtx {
    queue: Box<dyn Queue>,
    scratch: Arc<dyn Buffer>,
    used_bytes: usize,
    peak_bytes: usize,
}

impl StepCtx {
    /// A context on `device` with `scratch_bytes` of scratch.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](Error::OutOfMemory), [`DeviceLost`](Error::DeviceLost).
    pub fn new(device: &dyn Device, scratch_bytes: usize) -> Result<Self> {
        let scratch = device.allocate(scratch_bytes.next_multiple_of(SCRATCH_ALIGN))?;
        Ok(Self { queue: device.queue()?, scratch, used_bytes: 0, peak_bytes: 0 })
    }

    /// The queue.
    pub fn queue(&mut self) -> &mut dyn Queue {
        self.queue.as_mut()
    }

    /// The queue as the backend's own type, also where another one decorates it.
    pub fn queue_as<Q: Queue>(&mut self) -> Option<&mut Q> {
        let mut queue = self.queue.as_mut();
        while !(queue as &dyn Any).is::<Q>() {
            queue = queue.decorated()?;
        }
        (queue as &mut dyn Any).downcast_mut()
    }

    /// A contiguous scratch tensor; its contents are undefined.
    ///
    /// # Errors
    ///
    /// [`ScratchExhausted`](Error::ScratchExhausted) where the plan was too small.
    pub fn alloc(&mut self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let elements = dims.iter().try_fold(1usize, |a, &d| a.checked_mul(d));
        let wanted_bytes = elements.and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
        let planned_bytes = self.scratch.num_bytes();
        let free_bytes = planned_bytes - self.used_bytes;
        if wanted_bytes > free_bytes {
            return Err(Error::ScratchExhausted { wanted_bytes, free_bytes, planned_bytes });
        }
        let tensor = Tensor::new(self.scratch.clone(), self.used_bytes, dtype, dims);
        self.used_bytes = (self.used_bytes + wanted_bytes).next_multiple_of(SCRATCH_ALIGN).min(planned_bytes);
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        Ok(tensor)
    }

    /// Runs `f`, then takes back the scratch that it was given.
    pub fn scope<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let mark = self.used_bytes;
        let result = f(self);
        self.used_bytes = mark;
        result
    }

    /// Runs `f` as a range that a profiler shows by this name. The name is only put together where one listens.
    pub fn named<R>(&mut self, name: fmt::Arguments<'_>, f: impl FnOnce(&mut Self) -> R) -> R {
        self.queue.open_range(name);
        let result = f(self);
        self.queue.close_range();
        result
    }

    /// The most scratch bytes in use at once so far.
    pub fn peak_scratch_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// Enqueues a copy of plain values to a contiguous tensor; see [`Queue::write`].
    ///
    /// # Errors
    ///
    /// As [`Queue::write`].
    ///
    /// # Panics
    ///
    /// Where the values are not as many bytes as the tensor holds.
    pub fn write<T: bytemuck::NoUninit>(&mut self, dst: &Tensor, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        assert!(dst.is_contiguous(), "only a contiguous tensor can be written");
        assert_eq!(bytes.len(), dst.span_bytes(), "bytes for {dst:?}");
        self.queue.write(dst, bytes)
    }

    /// Enqueues a copy of a contiguous tensor to the host; see [`Queue::read`].
    ///
    /// # Errors
    ///
    /// As [`Queue::read`].
    pub fn read(&mut self, src: &Tensor) -> Result<Readback> {
        assert!(src.is_contiguous(), "only a contiguous tensor can be read");
        self.queue.read(src)
    }

    /// Runs `f` as a step: what it enqueues may be captured, so it neither allocates nor reads back.
    ///
    /// # Errors
    ///
    /// Those of `f`.
    pub fn step<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.queue.set_in_step(true);
        let result = self.scope(f);
        self.queue.set_in_step(false);
        result
    }

    /// Records what `f` enqueues. `Some(graph)`: nothing has run yet, [`launch`](Self::launch) runs it.
    /// `None`: the device has no graphs and `f` has been enqueued as usual.
    ///
    /// # Errors
    ///
    /// Those of `f` and of the device.
    pub fn capture(&mut self, f: impl FnOnce(&mut Self) -> Result<()>) -> Result<Option<Box<dyn Graph>>> {
        self.queue.begin_capture()?;
        let outcome = self.step(f);
        // A recording that failed half way may not end either; why it failed says more.
        let graph = self.queue.end_capture();
        outcome?;
        graph
    }

    /// Enqueues a recorded graph.
    ///
    /// # Errors
    ///
    /// As [`Queue::launch`].
    pub fn launch(&mut self, graph: &dyn Graph) -> Result<()> {
        self.queue.launch(graph)
    }

    /// Waits for the device.
    ///
    /// # Errors
    ///
    /// The first error of what was enqueued.
    pub fn synchronize(&mut self) -> Result<()> {
        self.queue.synchronize()
    }
}
