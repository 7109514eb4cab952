//! The host's side of logits processors: who asks for them, and what those have generated.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quire_kernels::{Readback, Result, StepCtx, Tensor};

use crate::row::{Row, RowStep};
use crate::{LogitsProcessor, LogitsProcessors, ProcessorCall, RowId, RowLogits};

/// The processors of a device, and the rows that ask for some.
pub(super) struct HostProcessors {
    processors: Vec<Box<dyn LogitsProcessor>>,
    /// By row place.
    rows: Vec<Option<AskingRow>>,
}

/// A row that asks for processors.
struct AskingRow {
    calls: Vec<ProcessorCall>,
    token_ids: Vec<u32>,
    num_prompt_tokens: usize,
    is_greedy: bool,
    /// A processor panicked over it.
    is_broken: bool,
}

/// A row of a step that is processed: where its logits stand.
#[derive(Clone, Copy)]
struct Asked {
    row: RowId,
    /// Its place among the sampled rows.
    idx: usize,
}

impl HostProcessors {
    pub(super) fn new(processors: &LogitsProcessors, max_num_seqs: usize) -> Self {
        Self { processors: processors.make(), rows: (0..max_num_seqs).map(|_| None).collect() }
    }

    /// How many kinds there are.
    pub(super) fn len(&self) -> usize {
        self.processors.len()
    }

    /// A row starts, or starts again.
    pub(super) fn add(&mut self, id: RowId, row: &Row) {
        if row.sampling.processors.is_empty() {
            return;
        }
        let mut row = AskingRow {
            calls: row.sampling.processors.clone(),
            token_ids: row.known_ids().to_vec(),
            num_prompt_tokens: row.num_prompt_tokens,
            is_greedy: row.sampling.temperature == 0.0,
            is_broken: false,
        };
        for call in &row.calls {
            let processor = &mut self.processors[call.processor as usize];
            let AskingRow { token_ids, num_prompt_tokens, .. } = &row;
            row.is_broken |= !guarded(|| processor.added(id, token_ids, *num_prompt_tokens, &call.args));
        }
        self.rows[id.0 as usize] = Some(row);
    }

    /// A row is gone.
    pub(super) fn release(&mut self, row: RowId) {
        for call in self.rows[row.0 as usize].take().into_iter().flat_map(|asking| asking.calls) {
            let processor = &mut self.processors[call.processor as usize];
            guarded(|| processor.released(row));
        }
    }

    /// Edits the logits (`[num_sampled, vocab_size]`) of the rows that ask for it: has the device bring them, and sends
    /// them back. `last_sampled` has the token of each row's last step.
    pub(super) fn run(
        &mut self,
        ctx: &mut StepCtx,
        steps: &[RowStep],
        logits: &Tensor,
        last_sampled: &Tensor,
    ) -> Result<()> {
        let asking = self.asking(steps);
        if asking.is_empty() {
            return Ok(());
        }
        let one = |idx: usize| logits.rows(idx, idx + 1);
        let tokens = ctx.read(last_sampled)?;
        let reads = asking.iter().map(|asked| ctx.read(&one(asked.idx))).collect::<Result<Vec<_>>>()?;
        self.take_tokens(steps, &tokens.wait_as::<i32>()?);
        let mut values =
            reads.into_iter().map(Readback::wait_as::<f32>).collect::<Result<Vec<Vec<f32>>>>()?;
        for processor in 0..self.processors.len() {
            self.process(processor, &asking, &mut values);
        }
        self.spoil_broken(&asking, &mut values);
        asking.iter().zip(&values).try_for_each(|(asked, values)| ctx.write(&one(asked.idx), values))
    }

    /// The rows of a step that any processor is to be shown.
    fn asking(&self, steps: &[RowStep]) -> Vec<Asked> {
        let sampled = steps.iter().filter(|step| step.sample).enumerate();
        let asked = sampled.map(|(idx, step)| Asked { row: step.row, idx });
        asked.filter(|asked| self.rows[asked.row.0 as usize].is_some()).collect()
    }

    /// Notes the tokens that rows go on from, where only the device knew them.
    fn take_tokens(&mut self, steps: &[RowStep], last_sampled: &[i32]) {
        for step in steps.iter().filter(|step| step.from_device) {
            let slot = step.row.0 as usize;
            if let Some(row) = &mut self.rows[slot] {
                // A row that has no token ends; what it is shown until then must be in the vocabulary.
                row.token_ids.push(u32::try_from(last_sampled[slot]).unwrap_or(0));
            }
        }
    }

    /// One processor, on all rows that ask for it.
    fn process(&mut self, processor: usize, asking: &[Asked], values: &mut [Vec<f32>]) {
        let Self { processors, rows } = self;
        let changes_argmax = processors[processor].may_change_argmax();
        let mut shown: Vec<RowLogits<'_>> = Vec::new();
        for (asked, logits) in asking.iter().zip(values.iter_mut()) {
            let row = rows[asked.row.0 as usize].as_ref().filter(|row| !row.is_broken);
            let Some(row) = row.filter(|row| changes_argmax || !row.is_greedy) else { continue };
            if let Some(call) = row.calls.iter().find(|call| call.processor as usize == processor) {
                shown.push(RowLogits {
                    row: asked.row,
                    token_ids: &row.token_ids,
                    num_prompt_tokens: row.num_prompt_tokens,
                    args: &call.args,
                    logits,
                });
            }
        }
        if !shown.is_empty() && !guarded(|| processors[processor].process(&mut shown)) {
            let shown: Vec<RowId> = shown.iter().map(|row| row.row).collect();
            for row in shown {
                rows[row.0 as usize].as_mut().expect("it was shown").is_broken = true;
            }
        }
    }

    /// A row without a number has no token, and its request ends.
    fn spoil_broken(&self, asking: &[Asked], values: &mut [Vec<f32>]) {
        for (asked, values) in asking.iter().zip(values) {
            if self.rows[asked.row.0 as usize].as_ref().is_some_and(|row| row.is_broken) {
                values.fill(f32::NAN);
            }
        }
    }
}

/// Runs a user's code. Whether it came to its end.
fn guarded(run: impl FnOnce()) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(run)).is_ok();
    if !ended {
        tracing::error!(target: "quire::executor", "a logits processor panicked");
    }
    ended
}
