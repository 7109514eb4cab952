//! The device and its queue: the inner ones, and the reading back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{TensorStats, TraceRecord, TraceSink};
use crate::{
    Buffer, DType, Device, DeviceId, DeviceInfo, Fence, Graph, Mark, Queue, Readback, Result, StepCtx,
    Tensor, TransferQueue,
};

/// The inner device by another queue: ids, buffers and tensors are the inner ones.
pub(super) struct TracedDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    trace: Trace,
}

/// What the queues of a device share.
#[derive(Clone)]
struct Trace {
    sink: Arc<dyn TraceSink>,
    next_step: Arc<AtomicU64>,
}

impl TracedDevice {
    pub(super) fn new(inner: Arc<dyn Device>, sink: Arc<dyn TraceSink>) -> Self {
        let info = DeviceInfo { name: format!("{}, traced", inner.info().name), ..inner.info().clone() };
        Self { inner, info, trace: Trace { sink, next_step: Arc::default() } }
    }
}

impl fmt::Debug for TracedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TracedDevice").field(&self.inner).finish()
    }
}

impl Device for TracedDevice {
    fn id(&self) -> DeviceId {
        self.inner.id()
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
        self.inner.allocate(num_bytes)
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
        let (inner, trace) = (self.inner.queue()?, self.trace.clone());
        Ok(Box::new(TracedQueue { inner, trace, step: None, in_step: false }))
    }

    fn host_memory(&self, num_bytes: usize) -> Result<Arc<dyn Buffer>> {
        self.inner.host_memory(num_bytes)
    }

    fn transfers(&self) -> Result<Box<dyn TransferQueue>> {
        self.inner.transfers()
    }
}

/// An operation, as it is called in the records.
#[derive(Clone, Copy)]
pub(super) struct Op<'a> {
    pub(super) name: &'static str,
    pub(super) weight: Option<&'a Arc<str>>,
    pub(super) is_fused: bool,
}

impl Op<'_> {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, weight: None, is_fused: false }
    }

    pub(super) fn fused(name: &'static str) -> Self {
        Self { is_fused: true, ..Self::new(name) }
    }
}

/// Records what an operation wrote, each tensor by the name of its parameter.
pub(super) fn record(ctx: &mut StepCtx, op: Op<'_>, outputs: &[(&'static str, &Tensor)]) -> Result<()> {
    let (queue, op) = begin(ctx, op);
    for &(name, tensor) in outputs {
        let bytes = queue.read_now(tensor)?;
        queue.tell(&op, name, tensor.dtype(), tensor.dims().to_vec(), &bytes);
    }
    Ok(())
}

/// As [`record`], of the elements of the vector `tensor` that `idx` names; -1 names none.
pub(super) fn record_elements(
    ctx: &mut StepCtx,
    op: Op<'_>,
    name: &'static str,
    (tensor, idx): (&Tensor, &Tensor),
) -> Result<()> {
    let (queue, op) = begin(ctx, op);
    let (bytes, idx) = (queue.read_now(tensor)?, queue.read_now(idx)?);
    let idx: Vec<i32> = bytemuck::allocation::pod_collect_to_vec(&idx);
    let elements: Vec<&[u8]> = bytes.chunks(tensor.dtype().block_bytes()).collect();
    let picked: Vec<&[u8]> =
        idx.iter().filter_map(|&i| elements.get(usize::try_from(i).ok()?).copied()).collect();
    queue.tell(&op, name, tensor.dtype(), vec![picked.len()], &picked.concat());
    Ok(())
}

fn begin<'c, 'a>(ctx: &'c mut StepCtx, op: Op<'a>) -> (&'c mut TracedQueue, Numbered<'a>) {
    let queue: &mut TracedQueue = ctx.queue_as().expect("a context of the traced device");
    let numbered = queue.number(op);
    (queue, numbered)
}

/// An operation with its place in the step.
struct Numbered<'a> {
    op: Op<'a>,
    step: u64,
    op_idx: u32,
    ordinal: u32,
}

struct TracedQueue {
    inner: Box<dyn Queue>,
    trace: Trace,
    /// The step that is going on; `None` before its first operation.
    step: Option<Step>,
    in_step: bool,
}

/// The operations of a step so far.
struct Step {
    number: u64,
    num_ops: u32,
    by_name: Vec<(&'static str, u32)>,
}

impl Step {
    /// The index of the next operation, and how many of its name there were before it.
    fn next(&mut self, name: &'static str) -> (u32, u32) {
        let op_idx = self.num_ops;
        self.num_ops += 1;
        let place = self.by_name.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            self.by_name.push((name, 0));
            self.by_name.len() - 1
        });
        let ordinal = self.by_name[place].1;
        self.by_name[place].1 += 1;
        (op_idx, ordinal)
    }
}

impl TracedQueue {
    fn number<'a>(&mut self, op: Op<'a>) -> Numbered<'a> {
        let next_step = &self.trace.next_step;
        let step = self.step.get_or_insert_with(|| Step {
            number: next_step.fetch_add(1, Ordering::Relaxed),
            num_ops: 0,
            by_name: Vec::new(),
        });
        let (op_idx, ordinal) = step.next(op.name);
        Numbered { op, step: step.number, op_idx, ordinal }
    }

    fn tell(&self, at: &Numbered<'_>, tensor: &'static str, dtype: DType, dims: Vec<usize>, bytes: &[u8]) {
        self.trace.sink.record(&TraceRecord {
            step: at.step,
            op_idx: at.op_idx,
            op: at.op.name,
            ordinal: at.ordinal,
            weight: at.op.weight.cloned(),
            is_fused: at.op.is_fused,
            tensor,
            dtype,
            dims,
            stats: TensorStats::of(dtype, bytes),
        });
    }

    /// The elements of a tensor without the gaps between its rows, as they are now. Reading back is forbidden in a
    /// step because a step may be captured; here none is, so the step is left for as long as it takes.
    fn read_now(&mut self, tensor: &Tensor) -> Result<Vec<u8>> {
        if tensor.num_elements() == 0 {
            return Ok(Vec::new());
        }
        let dims = [tensor.span_bytes()];
        let span = Tensor::new(tensor.buffer().clone(), tensor.offset_bytes(), DType::U8, &dims);
        self.inner.set_in_step(false);
        let bytes = self.inner.read(&span).and_then(Readback::wait);
        self.inner.set_in_step(self.in_step);
        Ok(without_gaps(tensor, bytes?))
    }
}

/// The rows of a tensor, out of the bytes that it spans.
fn without_gaps(tensor: &Tensor, span: Vec<u8>) -> Vec<u8> {
    if tensor.is_contiguous() {
        return span;
    }
    let num_bytes = |n| tensor.dtype().bytes_for(n).expect("a row holds whole blocks");
    let (row, stride) = (num_bytes(tensor.num_columns()), num_bytes(tensor.row_stride()));
    span.chunks(stride).flat_map(|gapped| &gapped[..row]).copied().collect()
}

impl Queue for TracedQueue {
    fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        self.inner.write(dst, bytes)
    }

    /// Ends the step.
    fn read(&mut self, src: &Tensor) -> Result<Readback> {
        self.step = None;
        self.inner.read(src)
    }

    fn copy_rows(&mut self, tensor: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
        self.inner.copy_rows(tensor, pairs)
    }

    fn set_in_step(&mut self, in_step: bool) {
        self.in_step = in_step;
        self.inner.set_in_step(in_step);
    }

    fn launch(&mut self, _graph: &dyn Graph) -> Result<()> {
        unreachable!("a device without graphs hands none out, so none of them can come back")
    }

    fn mark(&mut self) -> Result<Option<Box<dyn Mark>>> {
        self.inner.mark()
    }

    fn fence(&mut self) -> Result<Arc<dyn Fence>> {
        self.inner.fence()
    }

    fn wait_for(&mut self, fence: &dyn Fence) -> Result<()> {
        self.inner.wait_for(fence)
    }

    fn open_range(&mut self, name: fmt::Arguments<'_>) {
        self.inner.open_range(name);
    }

    fn close_range(&mut self) {
        self.inner.close_range();
    }

    fn synchronize(&mut self) -> Result<()> {
        self.inner.synchronize()
    }

    fn decorated(&mut self) -> Option<&mut dyn Queue> {
        Some(self.inner.as_mut())
    }
}
