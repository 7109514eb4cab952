//! Recorded steps.

use std::ptr::null_mut;
use std::sync::Arc;

use quire_kernels::{Graph, Result};

use crate::context::Context;
use crate::ffi::{self, CUgraph, CUgraphExec, CUstream};
use crate::module::Modules;

/// A recorded step, ready to run. It holds the kernels that it runs; the tensors are its owner's business.
pub(crate) struct CudaGraph {
    context: Arc<Context>,
    _modules: Arc<Modules>,
    exec: CUgraphExec,
    num_bytes: usize,
}

// SAFETY: a handle of the driver, which may be used from any thread, by one at a time.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Instantiates a recording, takes it down to the device and drops the recording. The size is what the
    /// device's free memory shrinks by: the driver takes memory in large pieces, so one graph may seem to take
    /// none and the next one more than it does, and only the sum tells.
    pub(crate) fn new(
        context: &Arc<Context>,
        modules: &Arc<Modules>,
        recording: Recording,
        stream: CUstream,
    ) -> Result<Self> {
        let (free_before, _) = context.memory_info()?;
        let mut exec = null_mut();
        // SAFETY: the recording is whole.
        match unsafe { ffi::cuGraphInstantiateWithFlags(&mut exec, recording.raw, 0) } {
            // What it wanted is not known; more than nothing.
            ffi::OUT_OF_MEMORY => return Err(context.out_of_memory(1, free_before)),
            code => context.check("cuGraphInstantiate", code)?,
        }
        let (context, modules) = (context.clone(), modules.clone());
        let mut graph = Self { context, _modules: modules, exec, num_bytes: 0 };
        // SAFETY: both are handles of this context.
        graph.context.check("cuGraphUpload", unsafe { ffi::cuGraphUpload(exec, stream) })?;
        let (free_after, _) = graph.context.memory_info()?;
        graph.num_bytes = free_before.saturating_sub(free_after);
        Ok(graph)
    }

    /// Enqueues the step; the context is current.
    pub(crate) fn launch(&self, stream: CUstream) -> Result<()> {
        // SAFETY: both are handles of this context.
        self.context.check("cuGraphLaunch", unsafe { ffi::cuGraphLaunch(self.exec, stream) })
    }
}

impl Graph for CudaGraph {
    fn num_bytes(&self) -> usize {
        self.num_bytes
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: nobody else has the handle; the driver keeps a graph that still runs until it is done.
            unsafe { ffi::cuGraphExecDestroy(self.exec) };
        }
    }
}

/// What a stream recorded.
pub(crate) struct Recording {
    raw: CUgraph,
}

impl Recording {
    /// Starts recording, for this thread.
    pub(crate) fn begin(context: &Context, stream: CUstream) -> Result<()> {
        // SAFETY: the stream lives.
        let code = unsafe { ffi::cuStreamBeginCapture_v2(stream, ffi::CAPTURE_THREAD_LOCAL) };
        context.check("cuStreamBeginCapture", code)
    }

    /// Ends it; what was recorded is an error where something was called that cannot be.
    pub(crate) fn end(context: &Context, stream: CUstream) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: a handle is written, null where the recording is broken.
        let code = unsafe { ffi::cuStreamEndCapture(stream, &mut raw) };
        let recording = Self { raw };
        context.check("cuStreamEndCapture", code).map(|()| recording)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: nobody else has the handle.
            unsafe { ffi::cuGraphDestroy(self.raw) };
        }
    }
}
