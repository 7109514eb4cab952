//! Device memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cust::stream::{Stream, StreamFlags};
use parking_lot::Mutex;
use quire_kernels::{Buffer, DeviceId, Error, Result, Tensor};

use crate::arena::Arena;
use crate::capture::Relaxed;
use crate::context::Context;
use crate::ffi;

/// Hands out the memory of a device: from the driver, or from one reservation once there is one.
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    /// Where new memory is zeroed.
    stream: Stream,
    reservation: Mutex<Option<Arc<Reservation>>>,
    num_allocations: AtomicU64,
}

impl DeviceMemory {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None)
            .map_err(|error| context.failed("cuStreamCreateWithPriority", error))?;
        Ok(Self {
            context: context.clone(),
            stream,
            reservation: Mutex::new(None),
            num_allocations: AtomicU64::new(0),
        })
    }

    /// Takes `num_bytes` from the driver, out of which all later allocations come.
    pub(crate) fn reserve(&self, num_bytes: usize) -> Result<()> {
        let mut reservation = self.reservation.lock();
        if let Some(current) = reservation.as_ref() {
            let arena = current.arena.lock();
            if !arena.slices.is_unused() {
                return Err(self.context.out_of_memory(num_bytes, arena.slices.free_bytes()));
            }
        }
        // The old one first: both may not fit.
        *reservation = None;
        *reservation = Some(Arc::new(Reservation::new(&self.context, num_bytes)?));
        Ok(())
    }

    /// Bytes that can still be allocated. A reservation in which nothing lives may be replaced by a larger one.
    pub(crate) fn free_bytes(&self) -> usize {
        let of_driver = || self.context.memory_info().map_or(0, |(free, _)| free);
        let Some(reservation) = self.reservation.lock().clone() else { return of_driver() };
        let slices = &reservation.arena.lock().slices;
        slices.free_bytes() + if slices.is_unused() { of_driver() } else { 0 }
    }

    /// How many allocations there were.
    pub(crate) fn num_allocations(&self) -> u64 {
        self.num_allocations.load(Ordering::Relaxed)
    }

    /// Zero-filled memory.
    pub(crate) fn allocate(&self, num_bytes: usize) -> Result<CudaBuffer> {
        self.context.bind()?;
        self.num_allocations.fetch_add(1, Ordering::Relaxed);
        let reservation = self.reservation.lock().clone();
        let (address, home) = match reservation {
            _ if num_bytes == 0 => (0, Home::Nowhere),
            Some(reservation) => {
                let start = reservation.take(num_bytes)?;
                (reservation.address + start as u64, Home::Slice { reservation, start })
            }
            None => (allocate(&self.context, num_bytes)?, Home::Own(self.context.clone())),
        };
        let buffer = CudaBuffer { address, num_bytes, device: self.context.id(), home };
        self.zero(&buffer)?;
        Ok(buffer)
    }

    fn zero(&self, buffer: &CudaBuffer) -> Result<()> {
        if buffer.num_bytes == 0 {
            return Ok(());
        }
        let _relaxed = Relaxed::enter();
        let stream = self.stream.as_inner();
        // SAFETY: the range is the new buffer's, which nobody else knows yet.
        let code = unsafe { ffi::cuMemsetD8Async(buffer.address, 0, buffer.num_bytes, stream) };
        self.context.check("cuMemsetD8Async", code)?;
        // SAFETY: the stream lives.
        self.context.check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(stream) })
    }
}

/// Memory of the driver that is handed out in slices.
struct Reservation {
    context: Arc<Context>,
    address: u64,
    arena: Mutex<Slices>,
}

struct Slices {
    slices: Arena,
    /// Whether a slice was given back since the device was last idle: work that uses it may be under way.
    is_stale: bool,
}

impl Reservation {
    fn new(context: &Arc<Context>, num_bytes: usize) -> Result<Self> {
        context.bind()?;
        let address = if num_bytes == 0 { 0 } else { allocate(context, num_bytes)? };
        let arena = Slices { slices: Arena::new(num_bytes), is_stale: false };
        Ok(Self { context: context.clone(), address, arena: Mutex::new(arena) })
    }

    /// Takes a slice that no work under way uses.
    fn take(&self, num_bytes: usize) -> Result<usize> {
        let mut arena = self.arena.lock();
        let free_bytes = arena.slices.free_bytes();
        let start =
            arena.slices.take(num_bytes).ok_or_else(|| self.context.out_of_memory(num_bytes, free_bytes))?;
        if arena.is_stale {
            // SAFETY: the context is current.
            let idle = self.context.check("cuCtxSynchronize", unsafe { ffi::cuCtxSynchronize() });
            if let Err(error) = idle {
                arena.slices.give(start, num_bytes);
                return Err(error);
            }
            arena.is_stale = false;
        }
        Ok(start)
    }

    fn give(&self, start: usize, num_bytes: usize) {
        let mut arena = self.arena.lock();
        arena.slices.give(start, num_bytes);
        arena.is_stale = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        free(&self.context, self.address);
    }
}

/// A run of device memory.
pub(crate) struct CudaBuffer {
    address: u64,
    num_bytes: usize,
    device: DeviceId,
    home: Home,
}

enum Home {
    /// Nothing was taken.
    Nowhere,
    /// An allocation of the driver.
    Own(Arc<Context>),
    /// A slice of the reservation.
    Slice { reservation: Arc<Reservation>, start: usize },
}

impl Buffer for CudaBuffer {
    fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    fn device(&self) -> DeviceId {
        self.device
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        match &self.home {
            Home::Nowhere => {}
            // The driver waits for work that uses the memory.
            Home::Own(context) => free(context, self.address),
            Home::Slice { reservation, start } => reservation.give(*start, self.num_bytes),
        }
    }
}

impl fmt::Debug for CudaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBuffer({} bytes at {:#x} on {})", self.num_bytes, self.address, self.device)
    }
}

/// Where the first element of a tensor lies in device memory.
///
/// # Panics
///
/// Where the tensor is one of another backend: parts are only given tensors of their own device.
pub(crate) fn address(tensor: &Tensor) -> u64 {
    let buffer: &dyn Any = tensor.buffer().as_ref();
    let buffer: &CudaBuffer = buffer.downcast_ref().expect("a tensor of a CUDA device");
    buffer.address + tensor.offset_bytes() as u64
}

/// Memory of the driver; the context is current.
fn allocate(context: &Context, num_bytes: usize) -> Result<u64> {
    let _relaxed = Relaxed::enter();
    let mut address = 0;
    // SAFETY: an address is written.
    match unsafe { ffi::cuMemAlloc_v2(&mut address, num_bytes) } {
        ffi::OUT_OF_MEMORY => {
            let free_bytes = context.memory_info().map_or(0, |(free, _)| free);
            Err(context.out_of_memory(num_bytes, free_bytes))
        }
        code => context.check("cuMemAlloc", code).map(|()| address),
    }
}

fn free(context: &Context, address: u64) {
    if address == 0 || context.bind().is_err() {
        return;
    }
    let _relaxed = Relaxed::enter();
    // SAFETY: the address came from `allocate` and is freed once. A lost device has freed it already.
    let code = unsafe { ffi::cuMemFree_v2(address) };
    if let Err(Error::DeviceLost { reason, .. }) = context.check("cuMemFree", code) {
        tracing::debug!(target: "quire::kernels", reason, "memory of a lost device");
    }
}
