//! Memory of the host that blocks are swapped to.

use std::any::Any;
use std::fmt;
use std::fs;
use std::sync::Arc;

use quire_kernels::{Buffer, DeviceId, Error, Result, Tensor};

use crate::context::Context;
use crate::ffi;
use crate::pinned::PinnedBlock;

/// A run of pinned memory. Its bytes are reached by transfers only.
pub(crate) struct HostBuffer {
    block: PinnedBlock,
    num_bytes: usize,
    context: Arc<Context>,
}

impl HostBuffer {
    /// Pins memory that the machine has.
    pub(crate) fn new(context: &Arc<Context>, num_bytes: usize) -> Result<Self> {
        // Pinned memory is never swapped out itself: asking for more than there is ends processes.
        if let Some(free_bytes) = free_bytes().filter(|&free| free < num_bytes) {
            return Err(Error::OutOfMemory {
                device: "host".to_owned(),
                wanted_bytes: num_bytes,
                free_bytes,
            });
        }
        let block = PinnedBlock::new(context, num_bytes.max(1))?;
        Ok(Self { block, num_bytes, context: context.clone() })
    }
}

impl Buffer for HostBuffer {
    fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    fn device(&self) -> DeviceId {
        self.context.id()
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: the context is current. Transfers may be under way; a lost device does none any more.
            unsafe { ffi::cuCtxSynchronize() };
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes for {})", self.num_bytes, self.context.name())
    }
}

/// Where the first element of a tensor lies in memory of the host; the device reaches it at the same address.
///
/// # Panics
///
/// Where the tensor lies in other memory.
pub(crate) fn host_address(tensor: &Tensor) -> u64 {
    let buffer: &dyn Any = tensor.buffer().as_ref();
    let buffer: &HostBuffer = buffer.downcast_ref().expect("host memory of a CUDA device");
    buffer.block.start() as u64 + tensor.offset_bytes() as u64
}

/// Memory that this process can still get, as far as the system says: of the machine, and of its control group.
fn free_bytes() -> Option<usize> {
    let of_machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let number = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok();
    let of_group = number("memory.max").zip(number("memory.current")).map(|(max, used): (usize, usize)| {
        // What the group's files keep in memory is given up for us.
        let files =
            fs::read_to_string("/sys/fs/cgroup/memory.stat").ok().and_then(|text| inactive_files(&text));
        max.saturating_sub(used.saturating_sub(files.unwrap_or(0)))
    });
    of_machine.into_iter().chain(of_group).min()
}

/// `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// `inactive_file` of a group's `memory.stat`.
fn inactive_files(stat: &str) -> Option<usize> {
    stat.lines().find_map(|line| line.strip_prefix("inactive_file "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    7340032 kB\n"), Some(7 << 30));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert_eq!(inactive_files("anon 1\ninactive_file 4096\nactive_file 2\n"), Some(4096));
        assert!(free_bytes().is_none_or(|bytes| bytes > 0));
    }
}
