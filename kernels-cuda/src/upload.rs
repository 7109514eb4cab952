//! Large copies to the device: weights, while a model is loaded.
//!
//! The device copies from pinned memory alone at the speed of its link, and one thread fills pinned memory at a
//! fraction of it. So several *lanes*, a thread and a stream each, take turns: while one of a lane's two buffers
//! is on its way, the thread fills the other.
//!
//! ```text
//!   lane 0   fill A | fill B | (A is over) fill A | ...
//!            ......   copy A ==> copy B ==> ...
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cust::stream::{Stream, StreamFlags};
use parking_lot::Mutex;
use quire_kernels::Result;

use crate::context::Context;
use crate::event::{Event, Wait};
use crate::ffi;
use crate::pinned::PinnedBlock;

/// Bytes of a buffer.
const CHUNK_BYTES: usize = 2 << 20;

/// Lanes at most: so many threads fill pinned memory faster than the link empties it.
const MAX_LANES: usize = 12;

/// Copies from this size on go through the lanes.
pub(crate) const MIN_BYTES: usize = 8 << 20;

/// The lanes of a device; they exist from the first copy until they are [released](Self::release).
pub(crate) struct Uploader {
    context: Arc<Context>,
    lanes: Mutex<Vec<Lane>>,
}

impl Uploader {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), lanes: Mutex::new(Vec::new()) }
    }

    /// Copies to device memory that no work under way uses, and waits.
    ///
    /// # Safety
    ///
    /// The target is `bytes.len()` bytes of a live buffer.
    pub(crate) unsafe fn upload(&self, target: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut lanes = self.lanes.lock();
        let num_lanes = bytes.len().div_ceil(2 * CHUNK_BYTES).clamp(1, max_lanes());
        while lanes.len() < num_lanes {
            lanes.push(Lane::new(&self.context)?);
        }
        let next = AtomicUsize::new(0);
        let copy = |lane: &mut Lane| {
            // SAFETY: as the caller promises.
            unsafe { lane.copy(&self.context, target, bytes, &next) }
        };
        thread::scope(|scope| {
            let (first, others) = lanes[..num_lanes].split_first_mut().expect("at least one lane");
            // A thread that the system refuses is one that takes no chunks.
            let spawn = |lane| {
                thread::Builder::new().name("quire-upload".to_owned()).spawn_scoped(scope, || copy(lane))
            };
            let threads: Vec<_> = others.iter_mut().filter_map(|lane| spawn(lane).ok()).collect();
            let first = copy(first);
            let outcomes = threads.into_iter().map(|t| t.join().expect("a lane does not panic"));
            outcomes.fold(first, |all, one| all.and(one))
        })
    }

    /// Frees the pinned memory.
    pub(crate) fn release(&self) {
        self.lanes.lock().clear();
    }
}

fn max_lanes() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_LANES)
}

struct Lane {
    stream: Stream,
    buffers: [Buffer; 2],
}

struct Buffer {
    block: PinnedBlock,
    /// Over once the device has read the block.
    read: Event,
}

impl Lane {
    fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None)
            .map_err(|error| context.failed("cuStreamCreateWithPriority", error))?;
        let buffer = || {
            let block = PinnedBlock::new(context, CHUNK_BYTES)?;
            Ok(Buffer { block, read: Event::new(context)? })
        };
        Ok(Self { stream, buffers: [buffer()?, buffer()?] })
    }

    /// Copies the chunks that it gets hold of.
    ///
    /// # Safety
    ///
    /// As [`Uploader::upload`].
    unsafe fn copy(
        &mut self,
        context: &Context,
        target: u64,
        bytes: &[u8],
        next: &AtomicUsize,
    ) -> Result<()> {
        context.bind()?;
        let stream = self.stream.as_inner();
        for turn in 0.. {
            let start = next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) else { break };
            let chunk = &rest[..rest.len().min(CHUNK_BYTES)];
            let buffer = &self.buffers[turn % 2];
            buffer.read.wait(Wait::Asleep)?;
            // SAFETY: the block is as long, and the device is done with it.
            unsafe { buffer.block.start().copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
            let source = buffer.block.start().cast_const().cast();
            // SAFETY: the chunk lies in the target as it does in the bytes; the block stays until `read` is over.
            let code =
                unsafe { ffi::cuMemcpyHtoDAsync_v2(target + start as u64, source, chunk.len(), stream) };
            context.check("cuMemcpyHtoDAsync", code)?;
            buffer.read.record(stream)?;
        }
        self.buffers.iter().try_for_each(|buffer| buffer.read.wait(Wait::Asleep))
    }
}
