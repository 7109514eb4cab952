//! Memory of the CPU device.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

use quire_kernels::{Buffer, DeviceId, Error, Result};

use crate::machine;

/// Where allocations start: a cache line, and a full vector.
const ALIGN: usize = 64;

/// From this size on memory comes straight from the system: zero pages that cost nothing until they are
/// touched, and large pages where the system has them.
#[cfg(target_os = "linux")]
const MAP_BYTES: usize = 1 << 20;

/// A large page.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Zero-filled bytes, aligned to [`ALIGN`], behind a raw pointer: who may touch which of them, and when, is the
/// owner's business.
pub(crate) struct Memory {
    start: NonNull<u8>,
    num_bytes: usize,
    origin: Origin,
}

#[derive(Clone, Copy)]
enum Origin {
    Heap(Layout),
    /// The mapping that holds the memory.
    #[cfg(target_os = "linux")]
    Map {
        start: NonNull<u8>,
        num_bytes: usize,
    },
}

// SAFETY: a `Memory` owns its bytes like a `Box<[u8]>`; the pointer is shared with nobody.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` only hands out its address and its size.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zero-filled memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], without aborting the process as `Vec` would.
    pub(crate) fn zeroed(num_bytes: usize) -> Result<Self> {
        Self::allocate(num_bytes).ok_or_else(|| Error::OutOfMemory {
            device: "cpu".to_owned(),
            wanted_bytes: num_bytes,
            free_bytes: machine::free_bytes(),
        })
    }

    fn allocate(num_bytes: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if num_bytes >= MAP_BYTES {
            return Self::map(num_bytes);
        }
        let layout = Layout::from_size_align(num_bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout has a size of at least one.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, num_bytes, origin: Origin::Heap(layout) })
    }

    /// A mapping that is a large page longer than the memory, so that the memory can start at one.
    #[cfg(target_os = "linux")]
    fn map(num_bytes: usize) -> Option<Self> {
        let mapped_bytes = num_bytes.checked_add(LARGE_PAGE_BYTES)?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, prot, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = NonNull::new(mapped.cast::<u8>())?;
        // SAFETY: less than a large page further on, so still in the mapping, with room for the memory.
        let start = unsafe { mapped.add(mapped.align_offset(LARGE_PAGE_BYTES)) };
        // SAFETY: the range lies in the mapping. A refusal only means small pages.
        unsafe { libc::madvise(start.as_ptr().cast(), num_bytes, libc::MADV_HUGEPAGE) };
        Some(Self { start, num_bytes, origin: Origin::Map { start: mapped, num_bytes: mapped_bytes } })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many there are.
    pub(crate) fn num_bytes(&self) -> usize {
        self.num_bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated with this layout, and nobody can hold a pointer into it past its owner.
            Origin::Heap(layout) => unsafe { dealloc(self.start(), layout) },
            #[cfg(target_os = "linux")]
            // SAFETY: mapped like this, and nobody can hold a pointer into it past its owner.
            Origin::Map { start, num_bytes } => unsafe {
                libc::munmap(start.as_ptr().cast(), num_bytes);
            },
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.num_bytes)
    }
}

/// A buffer of a CPU device. Its bytes are reached through a [`Session`](crate::access::Session) of that device
/// only, hence by one operation at a time.
#[derive(Debug)]
pub(crate) struct CpuBuffer {
    memory: Memory,
    device: DeviceId,
}

impl CpuBuffer {
    pub(crate) fn new(device: DeviceId, num_bytes: usize) -> Result<Self> {
        Ok(Self { memory: Memory::zeroed(num_bytes)?, device })
    }

    /// The first byte. Whoever reads or writes through it holds the device's session.
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start()
    }
}

impl Buffer for CpuBuffer {
    fn num_bytes(&self) -> usize {
        self.memory.num_bytes()
    }

    fn device(&self) -> DeviceId {
        self.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned_at_every_size() {
        for num_bytes in [0, 1, 63, 4096, 1 << 20, (1 << 20) + 5] {
            let memory = Memory::zeroed(num_bytes).unwrap();
            assert_eq!(memory.num_bytes(), num_bytes);
            assert_eq!(memory.start() as usize % ALIGN, 0);
            // SAFETY: the memory is ours alone, initialized, and this long.
            let bytes = unsafe { std::slice::from_raw_parts(memory.start(), num_bytes) };
            assert!(bytes.iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn an_absurd_size_is_an_error() {
        let error = Memory::zeroed(usize::MAX / 2).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { wanted_bytes, .. } if wanted_bytes == usize::MAX / 2));
    }
}
