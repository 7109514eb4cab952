//! A tiny model on the reference backend, and a scheduler that does what a seed tells it to.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::VecDeque;
use std::sync::Arc;

use quire_executor::{
    AddedRow, Executor, LocalExecutor, LogitsProcessor, LogitsProcessors, LogprobsMode, MaxModelLen,
    MemoryPlan, MemoryRequest, ModelSizes, PlannedRow, PoolSize, RowId, RowLogits, RowSampling, StepBatch,
    StepOutput, Ticket, TokenLogprobs, WorkerConfig,
};
use quire_kernels::{DType, Kernels, reference, testing};
use quire_models::testing::TinyModel;
use quire_models::{Architecture, Checkpoint, Llama, LoadOptions, Loader};

pub(crate) const VOCAB_SIZE: usize = 288;

/// A small plan: 8 rows, 64 tokens a step, sequences of 160 tokens.
pub(crate) fn request(block_size: usize, num_blocks: usize) -> MemoryRequest {
    MemoryRequest {
        swap_bytes: 0,
        max_num_batched_tokens: 64,
        max_num_seqs: 8,
        block_size,
        max_model_len: MaxModelLen::Exactly(160),
        pool: PoolSize::Blocks(num_blocks),
        kv_dtype: DType::F32,
        max_logprobs: 20,
        logprobs_mode: LogprobsMode::default(),
        enforce_eager: false,
        graph_bytes: None,
    }
}

pub(crate) fn checkpoint() -> Arc<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    Arc::new(Checkpoint::open(folder.path(), &LoadOptions::default()).unwrap())
}

pub(crate) fn plan(kernels: &Kernels, checkpoint: &Checkpoint, request: &MemoryRequest) -> MemoryPlan {
    let weight_bytes = checkpoint.check(&Llama.tensors(checkpoint).unwrap()).unwrap().num_bytes as usize;
    let sizes = ModelSizes { architecture: &Llama, config: checkpoint.config(), weight_bytes };
    MemoryPlan::new(kernels, sizes, request).unwrap()
}

/// An executor on `kernels`.
pub(crate) fn start(kernels: Kernels, request: &MemoryRequest) -> LocalExecutor {
    start_with(kernels, request, processors())
}

/// An executor that has other logits processors.
pub(crate) fn start_with(
    kernels: Kernels,
    request: &MemoryRequest,
    processors: LogitsProcessors,
) -> LocalExecutor {
    let checkpoint = checkpoint();
    let plan = plan(&kernels, &checkpoint, request);
    let max_model_len = plan.runner.limits.max_model_len;
    let load =
        Box::new(move |kernels: &Kernels| Llama.build(&Loader::new(&checkpoint, kernels, max_model_len)));
    LocalExecutor::start(WorkerConfig {
        kernels,
        plan,
        kv_scales: Vec::new(),
        processors,
        probe: Arc::new(|| None),
        load,
    })
    .unwrap()
}

/// Adds what it is told to the logit of the last token; panics where that is no number.
struct Echo;

impl LogitsProcessor for Echo {
    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        for row in rows {
            let by = row.args.as_f64().expect("a number") as f32;
            let last = *row.token_ids.last().expect("a prompt");
            row.logits[last as usize] += by;
        }
    }
}

/// Adds to all logits: greedy rows need not see it.
struct Shift;

impl LogitsProcessor for Shift {
    fn may_change_argmax(&self) -> bool {
        false
    }

    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        assert!(!rows.is_empty());
        rows.iter_mut().flat_map(|row| row.logits.iter_mut()).for_each(|logit| *logit += 3.0);
    }
}

/// Multiplies all logits.
struct Scale;

impl LogitsProcessor for Scale {
    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        for row in rows {
            let by = row.args.as_f64().expect("a number") as f32;
            row.logits.iter_mut().for_each(|logit| *logit *= by);
        }
    }
}

pub(crate) const ECHO: u32 = 0;
pub(crate) const SHIFT: u32 = 1;
pub(crate) const SCALE: u32 = 2;

fn processors() -> LogitsProcessors {
    LogitsProcessors::new().with("echo", || Echo).with("shift", || Shift).with("scale", || Scale)
}

/// Makes a backend.
type Backend = fn() -> Kernels;

/// The backends that every test runs on.
pub(crate) fn backends() -> [(&'static str, Backend); 3] {
    [
        ("reference", reference::kernels),
        ("deferred", || testing::deferred(&reference::kernels())),
        ("deferred, shallow", || testing::deferred_with_depth(&reference::kernels(), 3)),
    ]
}

/// SplitMix64 (Steele et al., 2014).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    pub(crate) fn prompt(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(VOCAB_SIZE) as u32).collect()
    }
}

/// What is generated.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: RowSampling,
    pub(crate) num_new: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
}

/// How jobs are scheduled.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// Most tokens of a row in a step.
    pub(crate) chunk: usize,
    /// Whether the next step is submitted before the last one is collected.
    pub(crate) run_ahead: bool,
    /// Numbers of output tokens after which a row is preempted.
    pub(crate) preempt_after: Vec<usize>,
    /// Leave out rows and preempt them as this seed says.
    pub(crate) chaos: Option<u64>,
}

impl Schedule {
    pub(crate) fn plain() -> Self {
        Self { chunk: 64, run_ahead: false, preempt_after: vec![], chaos: None }
    }
}

struct Running {
    job: Job,
    answer: Answer,
    row: RowId,
    epoch: u32,
    is_added: bool,
    blocks: Vec<u32>,
    num_computed: usize,
    num_in_flight: usize,
    preempt_after: Vec<usize>,
}

/// Runs the jobs to their ends.
pub(crate) fn run(executor: &mut dyn Executor, jobs: &[Job], schedule: &Schedule) -> Vec<Answer> {
    let mut driver =
        Driver::new(executor.capacity().num_blocks, executor.capacity().block_size, jobs, schedule);
    let mut open: VecDeque<Ticket> = VecDeque::new();
    loop {
        let batch = driver.plan(executor.capacity().max_num_batched_tokens);
        let is_idle = batch.rows.is_empty();
        if !is_idle || !batch.released.is_empty() {
            open.push_back(executor.submit(batch).unwrap());
        }
        let keep = usize::from(schedule.run_ahead && !is_idle);
        while open.len() > keep {
            let output = executor.collect(open.pop_front().unwrap()).unwrap();
            driver.commit(output);
        }
        if driver.is_done() && open.is_empty() {
            return driver.finish(executor);
        }
    }
}

/// Each job alone, in one piece.
pub(crate) fn run_alone(executor: &mut dyn Executor, jobs: &[Job]) -> Vec<Answer> {
    let alone = |job: &Job| run(executor, std::slice::from_ref(job), &Schedule::plain()).remove(0);
    jobs.iter().map(alone).collect()
}

struct Driver<'a> {
    running: Vec<Running>,
    free: Vec<u32>,
    block_size: usize,
    released: Vec<RowId>,
    schedule: &'a Schedule,
    dice: Dice,
}

thread_local! {
    /// Steps ascend over all runs of a test.
    static NEXT_STEP: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

pub(crate) fn next_step() -> u64 {
    NEXT_STEP.replace(NEXT_STEP.get() + 1)
}

impl<'a> Driver<'a> {
    fn new(num_blocks: usize, block_size: usize, jobs: &[Job], schedule: &'a Schedule) -> Self {
        let running = jobs.iter().enumerate().map(|(i, job)| Running {
            job: job.clone(),
            answer: Answer::default(),
            row: RowId(i as u32),
            epoch: 0,
            is_added: false,
            blocks: vec![],
            num_computed: 0,
            num_in_flight: 0,
            preempt_after: schedule.preempt_after.clone(),
        });
        let mut dice = Dice(schedule.chaos.unwrap_or(0));
        let mut free: Vec<u32> = (0..num_blocks as u32).collect();
        (1..free.len()).rev().for_each(|i| free.swap(i, dice.below(i + 1)));
        Self { running: running.collect(), free, block_size, released: vec![], schedule, dice }
    }

    fn is_done(&self) -> bool {
        self.running.iter().all(|r| r.answer.token_ids.len() == r.job.num_new && r.num_in_flight == 0)
    }

    fn plan(&mut self, mut budget: usize) -> StepBatch {
        self.preempt();
        let mut batch = StepBatch { step: next_step(), ..StepBatch::default() };
        let chaos = self.schedule.chaos.is_some();
        for i in 0..self.running.len() {
            let skip = chaos && self.dice.below(4) == 0;
            let chunk = if chaos { 1 + self.dice.below(self.schedule.chunk) } else { self.schedule.chunk };
            let r = &mut self.running[i];
            let num_outputs = r.answer.token_ids.len() + r.num_in_flight;
            let left = r.job.prompt.len() + num_outputs - r.num_computed;
            let num_tokens = left.min(chunk).min(budget);
            if num_outputs >= r.job.num_new || num_tokens == 0 || skip {
                continue;
            }
            budget -= num_tokens;
            let needed = (r.num_computed + num_tokens).div_ceil(self.block_size) - r.blocks.len();
            let new_blocks = self.free.split_off(self.free.len() - needed);
            r.blocks.extend(&new_blocks);
            let sample = num_tokens == left;
            let mut plan = PlannedRow {
                row: r.row,
                epoch: r.epoch,
                num_tokens: num_tokens as u32,
                new_blocks,
                sample,
                ..PlannedRow::default()
            };
            if !r.is_added {
                r.is_added = true;
                let block_table = std::mem::take(&mut plan.new_blocks);
                batch.added.push(r.added(block_table));
            }
            r.num_computed += num_tokens;
            r.num_in_flight += usize::from(sample);
            batch.rows.push(plan);
        }
        batch.released = std::mem::take(&mut self.released);
        batch
    }

    fn preempt(&mut self) {
        for r in &mut self.running {
            let num_outputs = r.answer.token_ids.len();
            let by_plan = r.preempt_after.first() == Some(&num_outputs);
            let by_chance = self.schedule.chaos.is_some() && self.dice.below(25) == 0;
            if !r.is_added || num_outputs == r.job.num_new || !(by_plan || by_chance) {
                continue;
            }
            if by_plan {
                r.preempt_after.remove(0);
            }
            self.free.append(&mut r.blocks);
            self.released.push(r.row);
            (r.is_added, r.num_computed, r.num_in_flight) = (false, 0, 0);
            r.epoch += 1;
            // What was computed of the prompt's log-probabilities comes again.
            r.answer.prompt_logprobs.clear();
        }
    }

    fn commit(&mut self, output: StepOutput) {
        for row in output.rows {
            let r = self.running.iter_mut().find(|r| r.row == row.row).unwrap();
            if row.epoch != r.epoch {
                continue;
            }
            r.num_in_flight -= row.token_ids.len();
            r.answer.token_ids.extend(row.token_ids);
            r.answer.logprobs.extend(row.logprobs);
            r.answer.prompt_logprobs.extend(row.prompt_logprobs);
        }
    }

    fn finish(self, executor: &mut dyn Executor) -> Vec<Answer> {
        let released = self.running.iter().filter(|r| r.is_added).map(|r| r.row).collect();
        let ticket =
            executor.submit(StepBatch { step: next_step(), released, ..StepBatch::default() }).unwrap();
        executor.collect(ticket).unwrap();
        self.running.into_iter().map(|r| r.answer).collect()
    }
}

impl Running {
    fn added(&self, block_table: Vec<u32>) -> AddedRow {
        AddedRow {
            row: self.row,
            epoch: self.epoch,
            token_ids: [&self.job.prompt[..], &self.answer.token_ids].concat(),
            num_prompt_tokens: self.job.prompt.len() as u32,
            num_computed_tokens: 0,
            block_table,
            sampling: self.job.sampling.clone(),
        }
    }
}
