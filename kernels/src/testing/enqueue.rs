//! Putting an operation in the queue, and poison in its outputs.

use super::on_inner::OnInner;
use super::queue::DeferredQueue;
use super::worker::Work;
use crate::{Result, StepCtx, Tensor};

/// An operation on its way into the queue.
pub(super) struct Enqueue<'c> {
    ctx: &'c mut StepCtx,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl<'c> Enqueue<'c> {
    pub(super) fn new(ctx: &'c mut StepCtx) -> Self {
        Self { ctx, inputs: Vec::new(), outputs: Vec::new() }
    }

    /// Tensors that the operation reads, or updates in place.
    pub(super) fn reads<'t>(mut self, inputs: impl IntoIterator<Item = &'t Tensor>) -> Self {
        self.inputs.extend(inputs.into_iter().map(Tensor::on_inner));
        self
    }

    /// Tensors that the operation overwrites in full.
    pub(super) fn writes<'t>(mut self, outputs: impl IntoIterator<Item = &'t Tensor>) -> Self {
        for output in outputs.into_iter().map(Tensor::on_inner) {
            let overlapped = self.inputs.iter().find(|input| output.overlaps(input));
            assert!(overlapped.is_none(), "the output {output:?} overlaps the input {overlapped:?}");
            self.outputs.push(output);
        }
        self
    }

    /// As [`writes`](Self::writes), where the output may be the input itself.
    pub(super) fn writes_or_updates(self, input: &Tensor, output: &Tensor) -> Self {
        let is_input = input.overlaps(output)
            && input.offset_bytes() == output.offset_bytes()
            && input.dims() == output.dims();
        if is_input { self } else { self.reads([input]).writes([output]) }
    }

    /// Queues `run`, which gets the inner device's context.
    pub(super) fn run(self, run: impl Fn(&mut StepCtx) -> Result<()> + Send + Sync + 'static) -> Result<()> {
        let outputs = self.outputs;
        let work = Work::operation(move |ctx| {
            outputs.iter().try_for_each(|output| poison(ctx, output))?;
            ctx.step(&run)
        });
        let queue: Option<&mut DeferredQueue> = self.ctx.queue_as();
        queue.expect("a context of the deferred device").enqueue(work);
        Ok(())
    }
}

/// Fills a tensor with NaN, or with an integer that no table reaches to; what lies between its rows is left alone.
pub(super) fn poison(ctx: &mut StepCtx, tensor: &Tensor) -> Result<()> {
    if tensor.num_elements() == 0 {
        return Ok(());
    }
    let byte = if tensor.dtype().is_float() { 0xff } else { 0x7b };
    if tensor.is_contiguous() {
        return ctx.queue().write(tensor, &vec![byte; tensor.span_bytes()]);
    }
    let dims = [tensor.num_rows(), tensor.num_columns()];
    assert_eq!(tensor.dims(), dims, "only a matrix has gaps between its rows");
    (0..dims[0]).try_for_each(|row| poison(ctx, &tensor.rows(row, row + 1)))
}
