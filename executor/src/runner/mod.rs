//! From a step batch to device work and back.

mod input;
mod masks;
mod pack;
mod pass;
mod processors;
mod results;
mod row_state;
mod sample;
mod timing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_kernels::{Kernels, Limits, Readback, Result as KernelResult, StepBuffers, StepCtx};
use quire_models::Model;

use self::input::{BlockTables, StepInput, StepShape};
use self::masks::RowMasks;
use self::pack::packed_bytes;
use self::pass::{ForwardPass, Pass};
use self::processors::HostProcessors;
use self::results::{PendingResults, ResultLayout, result_bytes};
use self::row_state::RowState;
use self::sample::Sampling;
use self::timing::{StepTiming, Timer};
use crate::graphs::{GraphCache, GraphSizes};
use crate::row::{RowStep, RowTable};
use crate::swap::{OpenTransfers, SwapSpace, Swapper};
use crate::{
    BatchError, DeviceCapacity, ExecutorError, KvPool, LogitsProcessors, LogprobsMode, RowId, StepBatch,
    StepOutput, TokenMasks,
};

/// Scratch views are aligned to this; a step of the runner makes fewer than [`MAX_VIEWS`].
const SCRATCH_ALIGN: usize = 256;
const MAX_VIEWS: usize = 24;

/// What a [`ModelRunner`] is made from, beside model and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerConfig {
    /// Tokens, rows, lengths, blocks.
    pub limits: Limits,
    /// Most log-probabilities that may be asked for beside a token's own.
    pub max_logprobs: u32,
    /// What they are of.
    pub logprobs_mode: LogprobsMode,
    /// Never record steps, also where the device could.
    pub enforce_eager: bool,
    /// Device memory that recorded steps may hold; what does not fit is enqueued each time.
    pub graph_bytes: usize,
}

impl RunnerConfig {
    /// These limits, up to 20 raw log-probabilities, steps recorded where the device can.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            max_logprobs: 20,
            logprobs_mode: LogprobsMode::default(),
            enforce_eager: false,
            graph_bytes: usize::MAX,
        }
    }

    /// Scratch that a step takes beside the model's activations and the kernels' own.
    pub fn scratch_bytes(&self, vocab_size: usize) -> usize {
        let Limits { max_num_batched_tokens, max_num_seqs, .. } = self.limits;
        let logits = 4 * max_num_seqs * vocab_size;
        let targets = packed_bytes(1, max_num_batched_tokens);
        let results = result_bytes(max_num_seqs, max_num_batched_tokens, self.max_logprobs as usize);
        // A slice of a prompt's logits takes the place that the copy of raw logits had.
        logits
            + sample::sample_bytes(max_num_seqs, vocab_size)
            + targets
            + results
            + MAX_VIEWS * SCRATCH_ALIGN
    }

    /// Bytes of what the runner keeps of rows on the device, and of the step's metadata.
    pub fn row_state_bytes(&self, vocab_size: usize) -> usize {
        RowState::num_bytes(self.limits.max_num_seqs, vocab_size) + StepBuffers::num_bytes(&self.limits)
    }
}

/// Turns step batches into device work: keeps the rows, builds the flat input, runs the model, samples.
///
/// Everything is enqueued on one queue and nothing waits for the device, so the next step can be enqueued while
/// this one runs. A row's result does not depend on the rows beside it, as far as the kernels keep to that.
pub struct ModelRunner {
    kernels: Kernels,
    model: Arc<dyn Model>,
    config: RunnerConfig,
    pool: KvPool,
    ctx: StepCtx,
    buffers: StepBuffers,
    rows: RowTable,
    input: StepInput,
    block_tables: BlockTables,
    state: RowState,
    masks: RowMasks,
    processors: HostProcessors,
    graphs: GraphCache,
    timer: Timer,
    swapper: Option<Swapper>,
}

/// A step whose work is enqueued.
#[derive(Debug)]
#[must_use = "a step that is not waited for gives nothing"]
pub struct PendingStep {
    results: PendingResults,
    timing: StepTiming,
    /// Transfers under way, and whether the step is there to wait for them.
    transfers: Option<OpenTransfers>,
    waits_for_transfers: bool,
}

/// Why a step failed; its number is added by [`ModelRunner::run`].
enum Failure {
    Batch(BatchError),
    Kernels(quire_kernels::Error),
    /// The masks of its gated rows will not come.
    NoMasks,
}

impl ModelRunner {
    /// A runner without rows. `scratch_bytes` is for a whole step: the runner's, the model's and the kernels'.
    ///
    /// # Errors
    ///
    /// Where the device has no memory left or is lost.
    pub fn new(
        kernels: Kernels,
        model: Arc<dyn Model>,
        pool: KvPool,
        config: RunnerConfig,
        scratch_bytes: usize,
    ) -> Result<Self, ExecutorError> {
        let (limits, vocab_size) = (config.limits, model.vocab_size());
        let device = kernels.device().as_ref();
        let mut ctx = kernels.step_ctx(scratch_bytes)?;
        let graphs = match config.enforce_eager {
            true => GraphCache::disabled(),
            false => {
                let sizes = GraphSizes::new(limits.max_num_seqs.min(limits.max_num_batched_tokens));
                GraphCache::new(&mut ctx, sizes, config.graph_bytes)?
            }
        };
        Ok(Self {
            buffers: StepBuffers::new(device, &limits)?,
            state: RowState::new(device, limits.max_num_seqs, vocab_size)?,
            masks: RowMasks::new(limits.max_num_seqs, vocab_size),
            processors: HostProcessors::new(&LogitsProcessors::new(), limits.max_num_seqs),
            rows: RowTable::new(capacity(&config, &pool, vocab_size), config.max_logprobs),
            input: StepInput::default(),
            block_tables: BlockTables::new(&limits),
            ctx,
            graphs,
            timer: Timer::default(),
            swapper: None,
            pool,
            config,
            kernels,
            model,
        })
    }

    /// The runner, with processors that rows may ask for.
    pub fn with_processors(mut self, processors: &LogitsProcessors) -> Self {
        self.processors = HostProcessors::new(processors, self.config.limits.max_num_seqs);
        self.rows = self.rows.with_processors(processors.len());
        self
    }

    /// The runner, able to move blocks of its pool to `space` and back.
    ///
    /// # Errors
    ///
    /// Where the device does not come up to it.
    pub(crate) fn with_swap_space(mut self, space: SwapSpace) -> Result<Self, ExecutorError> {
        self.swapper = Some(Swapper::start(self.kernels.device().as_ref(), space, &mut self.ctx)?);
        let rows = RowTable::new(self.capacity(), self.config.max_logprobs);
        self.rows = rows.with_processors(self.processors.len());
        Ok(self)
    }

    /// What the runner holds and allows, with one step open at a time.
    pub fn capacity(&self) -> DeviceCapacity {
        DeviceCapacity {
            num_swap_blocks: self.swapper.as_ref().map_or(0, Swapper::num_blocks),
            swap_bytes_per_s: self.swapper.as_ref().map_or(0, Swapper::bytes_per_s),
            ..capacity(&self.config, &self.pool, self.model.vocab_size())
        }
    }

    /// The most scratch that a step has taken so far.
    pub fn peak_scratch_bytes(&self) -> usize {
        self.ctx.peak_scratch_bytes()
    }

    /// How many shapes of decode steps were recorded so far.
    pub fn num_recorded_steps(&self) -> usize {
        self.graphs.len()
    }

    /// Records decode steps, the smallest first, until all sizes are there or the time is over; the rest is recorded
    /// when it is first wanted. So the first requests wait for no recording, and for nothing that a device does only
    /// once. A device that does not record does nothing.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Kernels`].
    pub fn warm_up(&mut self, patience: Duration) -> Result<(), ExecutorError> {
        let started = Instant::now();
        for num_rows in self.graphs.sizes() {
            if started.elapsed() > patience {
                break;
            }
            self.record(num_rows)?;
        }
        if self.graphs.len() > 0 {
            self.ctx.synchronize()?;
            tracing::info!(
                target: "quire::executor",
                "recorded decode steps of {} sizes, {} MiB, in {:.2} s",
                self.graphs.len(),
                self.graphs.num_bytes() >> 20,
                started.elapsed().as_secs_f64()
            );
        }
        Ok(())
    }

    /// Records the decode step of so many rows by running one of nothing but padding.
    fn record(&mut self, num_rows: usize) -> KernelResult<()> {
        let Self { ctx, input, buffers, rows, kernels, model, pool, graphs, .. } = self;
        input.build(&[], rows, self.config.limits.block_size);
        let shape = input.padded_shape(num_rows);
        input.send(ctx, buffers, kernels.sampling(), &self.state.last_sampled)?;
        let pass = ForwardPass { kernels, model: model.as_ref(), pool, buffers, input, shape };
        ctx.scope(|ctx| pass.enqueue(ctx, graphs).map(drop))
    }

    /// Checks a batch and enqueues its work. Nothing is forbidden to its gated rows.
    ///
    /// # Errors
    ///
    /// As [`run_gated`](Self::run_gated).
    pub fn run(&mut self, batch: StepBatch) -> Result<PendingStep, ExecutorError> {
        self.run_gated(batch, || Some(TokenMasks::default()))
    }

    /// Checks a batch and enqueues its work. Where it has gated rows, `masks` is called when the forward pass is enqueued;
    /// it waits for them, and says `None` where they will not come.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Batch`] where batch or masks do not fit the rows, [`ExecutorError::Step`] where the device
    /// fails, [`ExecutorError::NoMasks`]. After any, rows and cache are undefined: start over with a new runner.
    pub fn run_gated(
        &mut self,
        batch: StepBatch,
        mut masks: impl FnMut() -> Option<TokenMasks>,
    ) -> Result<PendingStep, ExecutorError> {
        let step = batch.step;
        self.timed(batch, &mut masks).map_err(|failure| match failure {
            Failure::Batch(source) => ExecutorError::Batch { step, source },
            Failure::Kernels(source) => ExecutorError::Step { step, source },
            Failure::NoMasks => ExecutorError::NoMasks { step },
        })
    }

    fn timed(
        &mut self,
        batch: StepBatch,
        masks: &mut dyn FnMut() -> Option<TokenMasks>,
    ) -> Result<PendingStep, Failure> {
        self.timer.start(&mut self.ctx)?;
        let (step, num_rows, num_tokens) = (batch.step, batch.rows.len(), batch.num_tokens());
        self.ctx.queue().open_range(format_args!("step {step}: {num_rows} rows {num_tokens} tokens"));
        let results = self.enqueue(batch, masks);
        self.ctx.queue().close_range();
        Ok(PendingStep {
            results: results?,
            timing: self.timer.stop(&mut self.ctx)?,
            transfers: self.swapper.as_ref().map(|swapper| swapper.open().clone()),
            waits_for_transfers: num_rows == 0,
        })
    }

    fn enqueue(
        &mut self,
        batch: StepBatch,
        masks: &mut dyn FnMut() -> Option<TokenMasks>,
    ) -> Result<PendingResults, Failure> {
        let step = batch.step;
        let steps = self.apply(batch)?;
        let layout = ResultLayout::new(&steps, &self.rows);
        let readback = match steps.is_empty() {
            true => None,
            false => {
                let shape = self.send_input(&steps)?;
                Some(self.compute(&steps, shape, &layout, masks)?)
            }
        };
        self.rows.advance(&steps);
        Ok(PendingResults { step, layout, readback })
    }

    /// Rows that went, rows that came, blocks that are copied, and what is left to compute.
    fn apply(&mut self, batch: StepBatch) -> Result<Vec<RowStep>, Failure> {
        self.rows.begin(&batch)?;
        for row in batch.released {
            self.rows.release(row)?;
            self.processors.release(row);
        }
        for transfer in &batch.transfers {
            let swapper = self.swapper.as_mut().expect("the swap space was checked to hold the blocks");
            swapper.transfer(&mut self.ctx, batch.step, transfer)?;
        }
        for added in batch.added {
            let id = added.row;
            let row = self.rows.add(added)?;
            self.processors.add(id, row);
            self.masks.add(id, &row.sampling);
            self.state.add(&mut self.ctx, id, row)?;
        }
        self.state.send(&mut self.ctx)?;
        self.pool.copy_blocks(&mut self.ctx, &batch.block_copies)?;
        Ok(self.rows.plan(&batch.rows)?)
    }

    fn send_input(&mut self, steps: &[RowStep]) -> KernelResult<StepShape> {
        let Self { ctx, input, buffers, rows, .. } = self;
        input.build(steps, rows, self.config.limits.block_size);
        let shape = input.shape(steps, &self.graphs);
        self.block_tables.send(ctx, buffers, steps, rows)?;
        input.send(ctx, buffers, self.kernels.sampling(), &self.state.last_sampled)?;
        Ok(shape)
    }

    fn compute(
        &mut self,
        steps: &[RowStep],
        shape: StepShape,
        layout: &ResultLayout,
        masks: &mut dyn FnMut() -> Option<TokenMasks>,
    ) -> Result<Readback, Failure> {
        let Self {
            kernels,
            model,
            pool,
            buffers,
            input,
            rows,
            state,
            masks: row_masks,
            processors,
            graphs,
            timer,
            ..
        } = self;
        let forward = ForwardPass { kernels, model: model.as_ref(), pool, buffers, input, shape };
        let logprobs_mode = self.config.logprobs_mode;
        let sampling = Sampling { kernels, state, table: rows, steps, layout, logprobs_mode };
        let pass = Pass { forward, sampling, max_num_seqs: self.config.limits.max_num_seqs };
        self.ctx.scope(|ctx| {
            let output = pass.forward.enqueue(ctx, graphs)?;
            let masks = match steps.iter().any(|step| step.gated) {
                true => timer.pause(masks).ok_or(Failure::NoMasks)?,
                false => TokenMasks::default(),
            };
            rows.check_masks(steps, &masks)?;
            let sampled: Vec<RowId> = steps.iter().filter(|step| step.sample).map(|step| step.row).collect();
            let masks = row_masks.send(ctx, &state.device.masks, &sampled, masks)?;
            Ok(pass.finish(ctx, &output, &masks, processors)?)
        })
    }
}

impl PendingStep {
    /// Waits for the device, and says besides how long it worked on this step: by its own clock, or where it has none
    /// at most since `free_since`, when it had finished the step before, or since this one was started.
    ///
    /// # Errors
    ///
    /// [`ExecutorError::Step`].
    pub fn wait(self, free_since: Option<Instant>) -> Result<StepOutput, ExecutorError> {
        let step = self.results.step;
        let asked = Instant::now();
        let output = self.results.wait().map_err(|source| ExecutorError::Step { step, source })?;
        let (device_time, device_idle) = self.timing.read(asked, free_since);
        let done = self.transfers.map(|open| open.take_done(step, self.waits_for_transfers));
        let transfers_done = done.transpose().map_err(|source| ExecutorError::Step { step, source })?;
        Ok(StepOutput {
            device_time_us: device_time.as_micros() as u64,
            device_idle_us: device_idle.as_micros() as u64,
            transfers_done: transfers_done.unwrap_or_default(),
            ..output
        })
    }
}

fn capacity(config: &RunnerConfig, pool: &KvPool, vocab_size: usize) -> DeviceCapacity {
    let Limits { max_num_batched_tokens, max_num_seqs, max_model_len, block_size } = config.limits;
    DeviceCapacity {
        num_blocks: pool.num_blocks(),
        block_size,
        block_bytes: pool.bytes_per_block(),
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        vocab_size,
        num_swap_blocks: 0,
        swap_bytes_per_s: 0,
        max_in_flight: 1,
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        Self::Batch(error)
    }
}

impl From<quire_kernels::Error> for Failure {
    fn from(error: quire_kernels::Error) -> Self {
        Self::Kernels(error)
    }
}
