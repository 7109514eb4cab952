//! An executor without a model.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::cache_model::CacheModel;
use crate::row::{RowStep, RowTable};
use crate::{
    BatchError, BlockTransfer, DeviceCapacity, Executor, ExecutorError, RowFault, RowOutput, StepBatch,
    StepOutput, Ticket, TokenLogprobs, TokenMasks,
};

/// Says which token follows: given the prompt's ids and the position that the token will have; [`NO_TOKEN`] where
/// the model is to have no finite logits.
pub type Script = Box<dyn Fn(&[u32], usize) -> u32 + Send>;

/// What a [`Script`] answers for a row that ends in [`RowFault::NoFiniteLogit`].
pub const NO_TOKEN: u32 = u32::MAX;

/// Most log-probabilities a token that a scripted row may ask for.
const MAX_LOGPROBS: u32 = 20;

/// An [`Executor`] that answers by a script, and checks what the engine asks as a device cannot: each step against
/// the rows, each position read against what was written there, each block written against the other rows.
///
/// What it emits depends on the prompt and the position only, so it is the same for every batching, chunking and
/// preemption. `min_tokens`, `allowed_token_ids` and the masks of gated rows are honoured: while they forbid the scripted
/// token, the next one that is allowed follows. A step with gated rows runs when its masks have come.
pub struct ScriptedExecutor {
    capacity: DeviceCapacity,
    script: Script,
    table: RowTable,
    cache: CacheModel,
    /// Transfers that are not done.
    transfers: VecDeque<BlockTransfer>,
    /// All ids of each row, those sampled included, and how many are the prompt.
    ids: Vec<(Vec<u32>, usize)>,
    open: VecDeque<OpenStep>,
    failed: bool,
    control: ScriptControl,
}

struct OpenStep {
    step: u64,
    /// Until it has run.
    batch: Option<StepBatch>,
    /// None where its gated rows wait for them.
    masks: Option<TokenMasks>,
    outcome: Result<StepOutput, ExecutorError>,
}

/// Steers a [`ScriptedExecutor`] from outside, also while an engine owns it, and tells what it was asked.
#[derive(Clone, Default)]
pub struct ScriptControl {
    shared: Arc<(Mutex<ControlState>, Condvar)>,
}

#[derive(Default)]
struct ControlState {
    failing_steps: Vec<u64>,
    fail_resets: usize,
    delay: Duration,
    held: bool,
    held_from: Option<u64>,
    batches: Vec<StepBatch>,
    violations: Vec<BatchError>,
    num_resets: usize,
}

impl ScriptControl {
    /// Makes `collect` of that step fail as a lost device does.
    pub fn fail_step(&self, step: u64) {
        self.shared.0.lock().failing_steps.push(step);
    }

    /// Makes the next `count` calls of `reset` fail.
    pub fn fail_resets(&self, count: usize) {
        self.shared.0.lock().fail_resets = count;
    }

    /// Makes each `collect` take that long.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.0.lock().delay = delay;
    }

    /// Makes `collect` wait, until [`go_on`](Self::go_on).
    pub fn hold(&self) {
        self.shared.0.lock().held = true;
    }

    /// Makes `collect` of that step and of those after it wait, until [`go_on`](Self::go_on); of earlier ones not, which
    /// lets those that wait for them go on.
    pub fn hold_from(&self, step: u64) {
        self.shared.0.lock().held_from = Some(step);
        self.shared.1.notify_all();
    }

    /// Ends [`hold`](Self::hold) and [`hold_from`](Self::hold_from).
    pub fn go_on(&self) {
        let mut state = self.shared.0.lock();
        (state.held, state.held_from) = (false, None);
        drop(state);
        self.shared.1.notify_all();
    }

    /// All batches submitted so far.
    pub fn batches(&self) -> Vec<StepBatch> {
        self.shared.0.lock().batches.clone()
    }

    /// What was wrong with the batches: empty where the engine is right.
    pub fn violations(&self) -> Vec<BatchError> {
        self.shared.0.lock().violations.clone()
    }

    /// How often the executor was reset.
    pub fn num_resets(&self) -> usize {
        self.shared.0.lock().num_resets
    }

    /// Waits out delay and hold; whether the step is one that fails.
    fn collect(&self, step: u64) -> bool {
        let (state, changed) = (&self.shared.0, &self.shared.1);
        let mut state = state.lock();
        changed
            .wait_while(&mut state, |state| state.held || state.held_from.is_some_and(|from| step >= from));
        let fails = state.failing_steps.contains(&step);
        let delay = state.delay;
        drop(state);
        std::thread::sleep(delay);
        fails
    }
}

impl ScriptedExecutor {
    /// An executor of that capacity which follows `script`.
    pub fn new(capacity: DeviceCapacity, script: impl Fn(&[u32], usize) -> u32 + Send + 'static) -> Self {
        Self {
            table: table(&capacity),
            cache: CacheModel::new(capacity.num_blocks, capacity.block_size, capacity.num_swap_blocks),
            transfers: VecDeque::new(),
            ids: vec![Default::default(); capacity.max_num_seqs],
            capacity,
            script: Box::new(script),
            open: VecDeque::new(),
            failed: false,
            control: ScriptControl::default(),
        }
    }

    /// A small device: 8 rows, 64 tokens a step, sequences as long as the pool, a vocabulary of 1000.
    pub fn small_capacity(num_blocks: usize, block_size: usize) -> DeviceCapacity {
        DeviceCapacity {
            num_blocks,
            block_size,
            block_bytes: 0,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: num_blocks * block_size,
            vocab_size: 1000,
            num_swap_blocks: 0,
            swap_bytes_per_s: 0,
            max_in_flight: 2,
        }
    }

    /// The handle to steer it by.
    pub fn control(&self) -> ScriptControl {
        self.control.clone()
    }

    /// Runs the steps that need not wait, in their order. As on a device, a step after a bad one does not run.
    fn run_ready(&mut self) {
        let mut is_bad = self.failed;
        for i in 0..self.open.len() {
            let open = &mut self.open[i];
            let step = open.step;
            if let Some(batch) = open.batch.take_if(|_| is_bad || open.masks.is_some()) {
                let masks = open.masks.take().unwrap_or_default();
                self.open[i].outcome = match is_bad {
                    true => Err(ExecutorError::Dropped { step }),
                    false => self.run(batch, &masks).map_err(|source| {
                        self.control.shared.0.lock().violations.push(source.clone());
                        ExecutorError::Batch { step, source }
                    }),
                };
            }
            let open = &self.open[i];
            if open.batch.is_some() {
                return;
            }
            is_bad |= open.outcome.is_err();
        }
    }

    fn run(&mut self, batch: StepBatch, masks: &TokenMasks) -> Result<StepOutput, BatchError> {
        self.table.begin(&batch)?;
        for &row in &batch.released {
            let gone = self.table.release(row)?;
            self.cache.release(row, &gone.blocks);
        }
        let transfers_done = self.finish_transfers(&batch);
        for added in batch.added {
            let (row, ids) = (added.row, added.token_ids.clone());
            let num_prompt = added.num_prompt_tokens as usize;
            self.cache.hold(&self.table.add(added)?.blocks);
            self.ids[row.0 as usize] = (ids, num_prompt);
        }
        batch.block_copies.iter().for_each(|&(from, to)| self.cache.copy(from, to));
        for plan in batch.rows.iter().filter(|plan| !plan.replaced_blocks.is_empty()) {
            self.cache.let_go(&self.table.get(plan.row)?.blocks);
        }
        let steps = self.table.plan(&batch.rows)?;
        for plan in &batch.rows {
            match plan.replaced_blocks.is_empty() {
                true => self.cache.hold(&plan.new_blocks),
                false => self.cache.hold(&self.table.get(plan.row)?.blocks),
            }
        }
        self.table.check_masks(&steps, masks)?;
        let rows = steps.iter().map(|step| self.run_row(step, masks)).collect::<Result<_, _>>()?;
        self.table.advance(&steps);
        Ok(StepOutput { step: batch.step, rows, transfers_done, ..StepOutput::default() })
    }

    /// A transfer is made, and done, as late as it can be: with the step after the one that it came with, or with one
    /// that has no rows.
    fn finish_transfers(&mut self, batch: &StepBatch) -> Vec<u64> {
        let num_before = self.transfers.len();
        self.transfers.extend(batch.transfers.iter().cloned());
        let num_done = if batch.rows.is_empty() { self.transfers.len() } else { num_before };
        let done = self.transfers.drain(..num_done);
        done.map(|transfer| {
            self.cache.transfer(&transfer);
            transfer.id
        })
        .collect()
    }

    fn run_row(&mut self, step: &RowStep, masks: &TokenMasks) -> Result<RowOutput, BatchError> {
        let row = self.table.get(step.row)?;
        let (ids, num_prompt) = &self.ids[step.row.0 as usize];
        self.cache.compute(step.row, &ids[..step.end()], step.start, &row.blocks)?;
        let mut output = RowOutput { row: step.row, epoch: step.epoch, ..RowOutput::default() };
        if let Some(num_top) = row.sampling.prompt_logprobs {
            let predicted = (step.start + 1)..(step.end() + 1).min(*num_prompt);
            output.prompt_logprobs = predicted.map(|i| self.made_up_logprobs(ids[i], num_top)).collect();
        }
        if step.sample {
            let token = self.next_token(step, masks, &ids[..*num_prompt])?;
            if token == NO_TOKEN {
                output.fault = Some(RowFault::NoFiniteLogit { position: step.end() as u32 });
            } else {
                let num_top = row.sampling.logprobs;
                output.logprobs.extend(num_top.map(|num_top| self.made_up_logprobs(token, num_top)));
                output.token_ids.push(token);
            }
            self.ids[step.row.0 as usize].0.push(token);
        }
        Ok(output)
    }

    fn next_token(&self, step: &RowStep, masks: &TokenMasks, prompt: &[u32]) -> Result<u32, BatchError> {
        let sampling = &self.table.get(step.row)?.sampling;
        let vocab_size = self.capacity.vocab_size as u32;
        let token = (self.script)(prompt, step.end());
        assert!(token == NO_TOKEN || token < vocab_size, "the script said {token} of {vocab_size} tokens");
        let may_end = step.end() - prompt.len() >= sampling.min_tokens as usize;
        let mask = masks.rows.iter().find(|(row, _)| *row == step.row).map(|(_, mask)| mask);
        let is_allowed = |token: &u32| {
            (may_end || !sampling.end_token_ids.contains(token))
                && sampling.allowed_token_ids.as_ref().is_none_or(|allowed| allowed.contains(token))
                && mask.is_none_or(|mask| mask.allows(*token))
        };
        let from_scripted = (0..vocab_size).map(|i| (token + i) % vocab_size);
        let found = if token == NO_TOKEN { None } else { from_scripted.into_iter().find(is_allowed) };
        Ok(found.unwrap_or(NO_TOKEN))
    }

    /// The token first, with a half; each next one half as likely.
    fn made_up_logprobs(&self, token_id: u32, num_top: u32) -> TokenLogprobs {
        let logprob = |place: u32| -std::f32::consts::LN_2 * (place + 1) as f32;
        let top = (0..num_top).map(|i| ((token_id + i) % self.capacity.vocab_size as u32, logprob(i)));
        TokenLogprobs { token_id, logprob: logprob(0), rank: 1, top: top.collect() }
    }

    fn fail(&mut self, error: ExecutorError) -> ExecutorError {
        self.failed = true;
        error
    }
}

impl Executor for ScriptedExecutor {
    fn capacity(&self) -> &DeviceCapacity {
        &self.capacity
    }

    fn submit(&mut self, batch: StepBatch) -> Result<Ticket, ExecutorError> {
        let (step, open, max_in_flight) = (batch.step, self.open.len(), self.capacity.max_in_flight);
        if open >= max_in_flight {
            return Err(ExecutorError::TooManyInFlight { open, max_in_flight });
        }
        self.control.shared.0.lock().batches.push(batch.clone());
        let masks = if batch.is_gated() { None } else { Some(TokenMasks::default()) };
        let outcome = Err(ExecutorError::NoMasks { step });
        self.open.push_back(OpenStep { step, batch: Some(batch), masks, outcome });
        self.run_ready();
        Ok(Ticket { step })
    }

    fn provide_masks(&mut self, ticket: &Ticket, masks: TokenMasks) -> Result<(), ExecutorError> {
        let step = ticket.step;
        let waiting = self.open.iter_mut().find(|open| open.batch.is_some() && open.masks.is_none());
        match waiting {
            Some(open) if open.step == step => open.masks = Some(masks),
            waiting => return Err(ExecutorError::NotGated { step, expected: waiting.map(|open| open.step) }),
        }
        self.run_ready();
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let expected = self.open.front().map(|open| open.step);
        if expected != Some(ticket.step) {
            return Err(ExecutorError::OutOfOrder { given: ticket.step, expected });
        }
        if self.open.front().is_some_and(|open| open.batch.is_some()) && !self.failed {
            return Err(ExecutorError::NoMasks { step: ticket.step });
        }
        let OpenStep { step, outcome, .. } = self.open.pop_front().expect("it is the front one");
        if self.failed {
            return Err(ExecutorError::Dropped { step });
        }
        if self.control.collect(step) {
            let source =
                quire_kernels::Error::DeviceLost { device: "scripted".into(), reason: "as asked".into() };
            return Err(self.fail(ExecutorError::Step { step, source }));
        }
        let delay = self.control.shared.0.lock().delay;
        match outcome {
            Ok(output) => Ok(StepOutput { device_time_us: delay.as_micros() as u64, ..output }),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn reset(&mut self) -> Result<(), ExecutorError> {
        let mut control = self.control.shared.0.lock();
        control.num_resets += 1;
        if control.fail_resets > 0 {
            control.fail_resets -= 1;
            return Err(ExecutorError::Stopped { reason: "as asked".into() });
        }
        self.table = table(&self.capacity);
        let DeviceCapacity { num_blocks, block_size, num_swap_blocks, .. } = self.capacity;
        self.cache = CacheModel::new(num_blocks, block_size, num_swap_blocks);
        self.transfers.clear();
        self.open.clear();
        self.failed = false;
        Ok(())
    }
}

/// It takes rows with any logits processor, and runs none.
fn table(capacity: &DeviceCapacity) -> RowTable {
    RowTable::new(capacity.clone(), MAX_LOGPROBS).with_processors(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddedRow, PlannedRow, RowId, RowMask, RowSampling, TokenMask};

    fn executor() -> ScriptedExecutor {
        ScriptedExecutor::new(ScriptedExecutor::small_capacity(4, 4), |prompt, position| {
            prompt[0] + position as u32
        })
    }

    fn added(sampling: RowSampling) -> AddedRow {
        AddedRow {
            row: RowId(0),
            epoch: 0,
            token_ids: vec![10, 11, 12],
            num_prompt_tokens: 3,
            num_computed_tokens: 0,
            block_table: vec![2],
            sampling,
        }
    }

    fn batch(step: u64, num_tokens: u32, sample: bool, added: Vec<AddedRow>) -> StepBatch {
        let row = RowId(0);
        let plan = PlannedRow { row, num_tokens, sample, ..PlannedRow::default() };
        StepBatch { step, added, rows: vec![plan], ..StepBatch::default() }
    }

    fn tokens(executor: &mut ScriptedExecutor, batch: StepBatch) -> Vec<u32> {
        let ticket = executor.submit(batch).unwrap();
        executor.collect(ticket).unwrap().rows.remove(0).token_ids
    }

    #[test]
    fn the_script_is_followed_whatever_the_chunks() {
        let mut executor = executor();
        assert!(tokens(&mut executor, batch(0, 2, false, vec![added(RowSampling::default())])).is_empty());
        assert_eq!(tokens(&mut executor, batch(1, 1, true, vec![])), [13]);
        assert_eq!(tokens(&mut executor, batch(2, 1, true, vec![])), [14]);
        assert!(executor.control().violations().is_empty());
    }

    #[test]
    fn a_gated_step_runs_when_its_masks_have_come_and_later_ones_after_it() {
        let mut executor = executor();
        let gated = |mut batch: StepBatch| {
            batch.rows[0].gated = true;
            batch
        };
        let start = vec![added(RowSampling::default())];
        let first = executor.submit(gated(batch(0, 3, true, start))).unwrap();
        let second = executor.submit(batch(1, 1, true, vec![])).unwrap();
        let none = TokenMasks::default();
        let refused = executor.provide_masks(&second, none.clone()).unwrap_err();
        assert!(matches!(refused, ExecutorError::NotGated { step: 1, expected: Some(0) }));
        assert!(matches!(executor.collect(Ticket { step: 0 }), Err(ExecutorError::NoMasks { step: 0 })));
        let only = RowMask::Only(TokenMask::of(1000, [40, 30]));
        executor.provide_masks(&first, TokenMasks { rows: vec![(RowId(0), only)] }).unwrap();
        assert!(executor.provide_masks(&first, none).is_err());
        assert_eq!(executor.collect(first).unwrap().rows[0].token_ids, [30]);
        assert_eq!(executor.collect(second).unwrap().rows[0].token_ids, [14]);

        let mut longer = gated(batch(2, 1, true, vec![]));
        longer.rows[0].new_blocks = vec![1];
        let third = executor.submit(longer).unwrap();
        let all_but = RowMask::AllBut(vec![15, 16]);
        executor.provide_masks(&third, TokenMasks { rows: vec![(RowId(0), all_but)] }).unwrap();
        assert_eq!(executor.collect(third).unwrap().rows[0].token_ids, [17]);
        assert!(executor.control().violations().is_empty());
    }

    #[test]
    fn end_tokens_are_skipped_until_min_tokens() {
        let sampling = RowSampling { min_tokens: 1, end_token_ids: vec![13, 14], ..RowSampling::default() };
        let mut executor = executor();
        assert_eq!(tokens(&mut executor, batch(0, 3, true, vec![added(sampling)])), [15]);
        assert_eq!(tokens(&mut executor, batch(1, 1, true, vec![])), [14]);
    }

    #[test]
    fn logprobs_come_for_each_token_that_was_predicted() {
        let sampling = RowSampling { logprobs: Some(1), prompt_logprobs: Some(0), ..RowSampling::default() };
        let mut executor = executor();
        let ticket = executor.submit(batch(0, 3, true, vec![added(sampling)])).unwrap();
        let row = executor.collect(ticket).unwrap().rows.remove(0);
        let ids = |list: &[TokenLogprobs]| list.iter().map(|entry| entry.token_id).collect::<Vec<_>>();
        assert_eq!((ids(&row.prompt_logprobs), ids(&row.logprobs)), (vec![11, 12], vec![13]));
    }

    #[test]
    fn a_failed_step_takes_the_open_ones_with_it_until_reset() {
        let mut executor = executor();
        executor.control().fail_step(0);
        let first = executor.submit(batch(0, 3, true, vec![added(RowSampling::default())])).unwrap();
        let second = executor.submit(batch(1, 1, true, vec![])).unwrap();
        assert!(matches!(
            executor.submit(batch(2, 1, true, vec![])),
            Err(ExecutorError::TooManyInFlight { .. })
        ));
        assert!(matches!(executor.collect(first), Err(ExecutorError::Step { step: 0, .. })));
        assert!(matches!(executor.collect(second), Err(ExecutorError::Dropped { step: 1 })));
        executor.reset().unwrap();
        assert_eq!(tokens(&mut executor, batch(3, 3, true, vec![added(RowSampling::default())])), [13]);
    }

    #[test]
    fn a_wrong_batch_is_told_at_collect_and_remembered() {
        let mut executor = executor();
        let ticket = executor.submit(batch(0, 4, true, vec![added(RowSampling::default())])).unwrap();
        assert!(matches!(executor.collect(ticket), Err(ExecutorError::Batch { .. })));
        assert_eq!(executor.control().violations().len(), 1);
    }
}
