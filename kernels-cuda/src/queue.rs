//! The queue: a stream, and the pinned memory that feeds it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use cust::stream::{Stream, StreamFlags};
use quire_kernels::{Error, Fence, Graph, Mark, Queue, Readback, Result, Tensor};

use crate::context::Context;
use crate::copy::{CopyKernels, RowCopies, SmallWrites};
use crate::event::Event;
use crate::fence::CudaFence;
use crate::ffi::{self, CUstream};
use crate::graph::{CudaGraph, Recording};
use crate::launch::{Grid, enqueue};
use crate::mark::{CudaMark, SpareMarks};
use crate::memory::address;
use crate::module::{Kernel, Modules};
use crate::nvtx::Nvtx;
use crate::pinned::PinnedPool;
use crate::readback::CudaRead;
use crate::staging::{self, Staging};
use crate::upload::{self, Uploader};

/// What queues share with their device.
pub(crate) struct QueueParts {
    pub(crate) context: Arc<Context>,
    pub(crate) pinned: Arc<PinnedPool>,
    pub(crate) modules: Arc<Modules>,
    pub(crate) copies: CopyKernels,
    pub(crate) uploader: Uploader,
    /// A profiler that wants to hear of ranges.
    pub(crate) nvtx: Option<Nvtx>,
}

/// An ordered run of work: a stream that waits for no other.
///
/// Small writes are not enqueued one by one: they wait, in pinned memory, for the next work of another kind, and
/// one kernel before it does them all. A step's metadata comes as a dozen of them, and each copy of its own would
/// cost the host and the device as much as a small kernel does.
pub(crate) struct CudaQueue {
    parts: Arc<QueueParts>,
    stream: Stream,
    staging: Option<Staging>,
    small_writes: SmallWrites,
    spare_marks: SpareMarks,
    in_step: bool,
    is_recording: bool,
    /// Whether small writes, or waiting for another queue, are the last work: the next kernel then overlaps with
    /// nothing, so that all kernels may read what the host wrote, and what was waited for, before they wait for the one
    /// in front of them.
    starts_alone: bool,
}

impl CudaQueue {
    pub(crate) fn new(parts: Arc<QueueParts>) -> Result<Self> {
        parts.context.bind()?;
        let stream = Stream::new(StreamFlags::NON_BLOCKING, None)
            .map_err(|error| parts.context.failed("cuStreamCreateWithPriority", error))?;
        let small_writes = SmallWrites::default();
        Ok(Self {
            parts,
            stream,
            staging: None,
            small_writes,
            spare_marks: SpareMarks::default(),
            in_step: false,
            is_recording: false,
            starts_alone: false,
        })
    }

    /// The stream, for what is enqueued on it directly, behind all writes so far. The context is current on this
    /// thread.
    pub(crate) fn stream(&mut self) -> Result<CUstream> {
        self.parts.context.bind()?;
        let stream = self.stream.as_inner();
        if let Some((grid, params)) = self.small_writes.launch() {
            // SAFETY: each write was checked to lie in its tensor, which lives until it is enqueued; what it reads
            // stays until a fence behind the kernel is over.
            let code = unsafe { enqueue(stream, &self.parts.copies.writes, grid, &params) };
            self.small_writes.clear();
            self.parts.context.check("cuLaunchKernelEx", code)?;
            self.starts_alone = true;
        }
        Ok(stream)
    }

    /// Breaks the device, for tests.
    pub(crate) fn lose(&mut self) -> Result<()> {
        let kernel = self.parts.copies.fault.clone();
        let grid = Grid { blocks: [1; 3], threads: 32, shared_bytes: 0, overlaps: false };
        // SAFETY: not sound, and meant so: the kernel writes where nothing is.
        unsafe { self.launch_kernel(&kernel, grid, &0u64)? };
        self.synchronize()
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    ///
    /// As [`crate::launch::launch`].
    pub(crate) unsafe fn launch_kernel<P: Copy>(
        &mut self,
        kernel: &Kernel,
        grid: Grid,
        params: &P,
    ) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let stream = self.stream()?;
        let overlaps = grid.overlaps && !std::mem::take(&mut self.starts_alone);
        // SAFETY: as the caller promises.
        let code = unsafe { enqueue(stream, kernel, Grid { overlaps, ..grid }, params) };
        self.parts.context.check("cuLaunchKernelEx", code)
    }

    /// Puts bytes where the device can fetch them and returns their address, for it and for the host.
    /// At most [`staging::MAX_BYTES`].
    fn stage(&mut self, bytes: &[u8]) -> Result<*mut u8> {
        loop {
            let staging = match &mut self.staging {
                Some(staging) => staging,
                none => none.insert(Staging::new(&self.parts.pinned)?),
            };
            if let Some(staged) = staging.put(bytes) {
                return Ok(staged);
            }
            let stream = self.stream()?;
            let staging = self.staging.as_mut().expect("it was just there");
            staging.make_room(&self.parts.context, stream)?;
        }
    }

    /// Puts a write with the others that wait.
    fn write_small(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        if !self.small_writes.takes(address(dst), bytes.len()) {
            self.stream()?;
        }
        let source = self.stage(bytes)?;
        self.small_writes.push(dst, source as u64);
        Ok(())
    }

    fn write_pieces(&mut self, mut target: u64, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(staging::MAX_BYTES) {
            let source = self.stage(piece)?;
            let stream = self.stream()?;
            // SAFETY: the target lies in the tensor; the source stays as it is until a fence behind it is over.
            let code = unsafe { ffi::cuMemcpyHtoDAsync_v2(target, source.cast(), piece.len(), stream) };
            self.parts.context.check("cuMemcpyHtoDAsync", code)?;
            target += piece.len() as u64;
        }
        Ok(())
    }
}

impl Queue for CudaQueue {
    fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        not_in_step("write from the host", self.is_recording)?;
        assert!(dst.is_contiguous() && dst.span_bytes() == bytes.len(), "bytes for {dst:?}");
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() <= SmallWrites::MAX_BYTES {
            return self.write_small(dst, bytes);
        }
        if bytes.len() < upload::MIN_BYTES {
            return self.write_pieces(address(dst), bytes);
        }
        self.synchronize()?;
        // SAFETY: the target is the tensor, and this queue is idle.
        unsafe { self.parts.uploader.upload(address(dst), bytes) }
    }

    fn read(&mut self, src: &Tensor) -> Result<Readback> {
        not_in_step("read back", self.in_step || self.is_recording)?;
        assert!(src.is_contiguous(), "{src:?} is not contiguous");
        let num_bytes = src.span_bytes();
        if num_bytes == 0 {
            return Ok(Readback::ready(Vec::new()));
        }
        let stream = self.stream()?;
        let context = &self.parts.context;
        let (block, event) = self.parts.pinned.take(num_bytes)?;
        let event = event.map_or_else(|| Event::new(context), Ok)?;
        let target = block.start().cast();
        // SAFETY: the tensor lies in its buffer, the block is as long and nobody else's until the event is over.
        let code = unsafe { ffi::cuMemcpyDtoHAsync_v2(target, address(src), num_bytes, stream) };
        context.check("cuMemcpyDtoHAsync", code)?;
        event.record(stream)?;
        Ok(Readback::new(Box::new(CudaRead::new(self.parts.pinned.clone(), block, event, num_bytes))))
    }

    fn copy_rows(&mut self, tensor: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
        not_in_step("copy rows", self.is_recording)?;
        let rows = RowCopies::of(tensor, pairs);
        let kernel = self.parts.copies.rows.clone();
        for pairs in pairs.chunks(RowCopies::MAX_PAIRS) {
            let flat: Vec<[u32; 2]> = pairs.iter().map(|&(from, to)| [from, to]).collect();
            let staged = self.stage(bytemuck::cast_slice(&flat))?;
            let (grid, params) = rows.launch(staged as u64, pairs.len());
            // SAFETY: the rows were checked to lie in the tensor, and the pairs stay where they are until a
            // fence behind the kernel is over.
            unsafe { self.launch_kernel(&kernel, grid, &params)? };
        }
        Ok(())
    }

    fn set_in_step(&mut self, in_step: bool) {
        self.in_step = in_step;
    }

    fn begin_capture(&mut self) -> Result<()> {
        let stream = self.stream()?;
        Recording::begin(&self.parts.context, stream)?;
        self.is_recording = true;
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Option<Box<dyn Graph>>> {
        let stream = self.stream()?;
        self.is_recording = false;
        let recording = Recording::end(&self.parts.context, stream)?;
        let graph = CudaGraph::new(&self.parts.context, &self.parts.modules, recording, stream)?;
        Ok(Some(Box::new(graph)))
    }

    fn launch(&mut self, graph: &dyn Graph) -> Result<()> {
        let graph: &CudaGraph = (graph as &dyn Any).downcast_ref().expect("a graph of a CUDA device");
        let stream = self.stream()?;
        graph.launch(stream)
    }

    fn mark(&mut self) -> Result<Option<Box<dyn Mark>>> {
        not_in_step("mark", self.is_recording)?;
        let stream = self.stream()?;
        Ok(Some(Box::new(CudaMark::new(&self.parts.context, &self.spare_marks, stream)?)))
    }

    fn fence(&mut self) -> Result<Arc<dyn Fence>> {
        not_in_step("set a fence", self.in_step || self.is_recording)?;
        let stream = self.stream()?;
        CudaFence::set(&self.parts.context, stream)
    }

    fn wait_for(&mut self, fence: &dyn Fence) -> Result<()> {
        not_in_step("wait for a fence", self.in_step || self.is_recording)?;
        let stream = self.stream()?;
        self.starts_alone = true;
        CudaFence::hold_back(fence, stream)
    }

    fn open_range(&mut self, name: fmt::Arguments<'_>) {
        if let Some(nvtx) = &self.parts.nvtx {
            nvtx.push(name);
        }
    }

    fn close_range(&mut self) {
        if let Some(nvtx) = &self.parts.nvtx {
            nvtx.pop();
        }
    }

    fn synchronize(&mut self) -> Result<()> {
        let stream = self.stream()?;
        // SAFETY: the stream lives.
        let code = unsafe { ffi::cuStreamSynchronize(stream) };
        self.parts.context.check("cuStreamSynchronize", code)
    }
}

fn not_in_step(operation: &'static str, is_in_step: bool) -> Result<()> {
    if is_in_step { Err(Error::NotInStep { operation }) } else { Ok(()) }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        // The device may still read the ring and write what nobody waits for. A lost device does neither.
        let _ = self.synchronize();
        if let Some(staging) = self.staging.take() {
            staging.give_back(&self.parts.pinned);
        }
    }
}
