//! The device work of one step, after its input was sent: layers and logits, then sampling and read-back.

use quire_kernels::{DType, Kernels, Readback, Result, StepBuffers, StepCtx, Tensor};
use quire_models::{GroupStep, Model, ModelInput};

use super::input::{StepInput, StepShape};
use super::masks::StepMasks;
use super::pack::{Upload, view};
use super::processors::HostProcessors;
use super::results::{ResultLayout, logprobs_out};
use super::sample::Sampling;
use crate::KvPool;
use crate::graphs::GraphCache;

/// The layers and the logits of one step: the part that is recorded and replayed.
pub(super) struct ForwardPass<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) model: &'a dyn Model,
    pub(super) pool: &'a KvPool,
    pub(super) buffers: &'a StepBuffers,
    pub(super) input: &'a StepInput,
    pub(super) shape: StepShape,
}

/// One step.
pub(super) struct Pass<'a> {
    pub(super) forward: ForwardPass<'a>,
    pub(super) sampling: Sampling<'a>,
    pub(super) max_num_seqs: usize,
}

/// What the recorded part of a step writes to.
pub(super) struct ForwardOutput {
    groups: Vec<GroupStep>,
    /// `[num_logits, hidden_size]`: rows that sample, padding, prompt positions.
    hidden: Tensor,
    /// `[num_sampled, vocab_size]` F32, padded rows included.
    logits: Tensor,
}

impl ForwardPass<'_> {
    /// Enqueues it, from the record where there is one.
    pub(super) fn enqueue(&self, ctx: &mut StepCtx, graphs: &mut GraphCache) -> Result<ForwardOutput> {
        // What a recorded step touches is allocated first, so that a replay finds it at the same addresses.
        let output = self.plan(ctx)?;
        let work = |ctx: &mut StepCtx| self.compute(ctx, &output);
        match self.shape.recorded {
            true => graphs.run(ctx, self.shape.key, work)?,
            false => ctx.step(work)?,
        }
        Ok(output)
    }

    fn plan(&self, ctx: &mut StepCtx) -> Result<ForwardOutput> {
        let (key, model) = (self.shape.key, self.model);
        let num_sampled = key.num_logits - self.input.prompt_targets.len();
        let hidden = ctx.alloc(model.activation_dtype(), &[key.num_logits, model.hidden_size()])?;
        let logits = ctx.alloc(DType::F32, &[num_sampled, model.vocab_size()])?;
        Ok(ForwardOutput { groups: self.groups(ctx)?, hidden, logits })
    }

    /// What each KV group sees. All have one block table, and groups of one layout one plan.
    fn groups(&self, ctx: &mut StepCtx) -> Result<Vec<GroupStep>> {
        let (key, layouts) = (self.shape.key, self.pool.groups());
        let mut groups: Vec<GroupStep> = Vec::with_capacity(layouts.len());
        for (idx, layout) in layouts.iter().enumerate() {
            let planned = layouts[..idx].iter().position(|other| other == layout);
            let plan = match planned {
                Some(same) => groups[same].plan.clone(),
                None => self.kernels.attention().plan(ctx, key, &self.input.rows, layout)?,
            };
            groups.push(GroupStep { view: self.buffers.view(key), plan });
        }
        Ok(groups)
    }

    fn compute(&self, ctx: &mut StepCtx, output: &ForwardOutput) -> Result<()> {
        let ForwardOutput { groups, hidden, logits } = output;
        let input = ModelInput { groups, layers: self.pool.layers() };
        ctx.scope(|ctx| self.model.hidden_states(ctx, &input, hidden))?;
        match logits.num_rows() {
            0 => Ok(()),
            num_rows => ctx.named(format_args!("logits"), |ctx| {
                ctx.scope(|ctx| self.model.logits(ctx, &hidden.rows(0, num_rows), logits))
            }),
        }
    }
}

impl Pass<'_> {
    /// Enqueues what follows the forward pass, the copy of the results to the host last.
    pub(super) fn finish(
        &self,
        ctx: &mut StepCtx,
        forward: &ForwardOutput,
        masks: &StepMasks,
        processors: &mut HostProcessors,
    ) -> Result<Readback> {
        let layout = self.sampling.layout;
        let results = layout.alloc(ctx)?;
        let num_sampled = layout.sampled.len();
        if num_sampled > 0 {
            let logits = forward.logits.rows(0, num_sampled);
            ctx.named(format_args!("sampling"), |ctx| {
                ctx.scope(|ctx| self.sampling.enqueue(ctx, &logits, masks, processors, &results))
            })?;
        }
        if layout.prompt.num_rows > 0 {
            let hidden = forward.hidden.rows(num_sampled, num_sampled + layout.prompt.num_rows);
            ctx.scope(|ctx| self.prompt_logprobs(ctx, &hidden, layout, &results))?;
        }
        ctx.read(&results)
    }

    /// Log-probabilities of the prompt tokens that the rows of `hidden` predict, a slice at a time: the logits of a
    /// long prompt would take more memory than its cache.
    fn prompt_logprobs(
        &self,
        ctx: &mut StepCtx,
        hidden: &Tensor,
        layout: &ResultLayout,
        results: &Tensor,
    ) -> Result<()> {
        let ForwardPass { kernels, model, input, .. } = self.forward;
        let mut upload = Upload::default();
        let place = upload.push(input.prompt_targets.iter().map(|&id| id as i32));
        let targets = view(&upload.send(ctx)?, &place);
        for start in (0..hidden.num_rows()).step_by(self.max_num_seqs) {
            let end = (start + self.max_num_seqs).min(hidden.num_rows());
            ctx.scope(|ctx| {
                let logits = ctx.alloc(DType::F32, &[end - start, model.vocab_size()])?;
                ctx.scope(|ctx| model.logits(ctx, &hidden.rows(start, end), &logits))?;
                let out = layout.prompt.views(results, start..end);
                let targets = targets.rows(start, end);
                kernels.sampling().logprobs(
                    ctx,
                    &logits,
                    &targets,
                    &logprobs_out(&out, self.sampling.logprobs_mode),
                )
            })?;
        }
        Ok(())
    }
}
