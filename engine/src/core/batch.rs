//! From the scheduler's plan to the executor's batch.

use quire_executor::{AddedRow, BlockTransfer, PlannedRow, RowSampling, StepBatch, SwapDirection};
use quire_kvcache::{BlockId, Direction, Transfer};
use quire_scheduler::{RowKind, Scheduler, SeqId, StepPlan};

use super::rows::RowSlots;

/// What the device is told of a sequence beside its tokens and blocks.
pub(super) struct RowFacts {
    pub(super) num_prompt_tokens: u32,
    pub(super) sampling: RowSampling,
}

/// What a plan is completed with.
pub(super) struct Facts<F, G> {
    /// Asked for the sequences that the device does not know.
    pub(super) of_row: F,
    /// Whether what a sequence may choose hangs on its last token.
    pub(super) is_gated: G,
}

/// Writes a plan as the difference that the device is told: sequences become rows, blocks become numbers.
pub(super) fn step_batch(
    plan: &StepPlan,
    scheduler: &Scheduler,
    rows: &mut RowSlots,
    facts: Facts<impl Fn(SeqId) -> RowFacts, impl Fn(SeqId) -> bool>,
) -> StepBatch {
    let mut batch = StepBatch {
        step: plan.step.0,
        released: plan.released.iter().filter_map(|&seq| rows.release(seq)).collect(),
        transfers: plan.transfers.iter().map(block_transfer).collect(),
        block_copies: plan.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect(),
        ..StepBatch::default()
    };
    for planned in &plan.rows {
        let mut row = PlannedRow {
            row: rows.get(planned.seq).unwrap_or_default(),
            epoch: planned.epoch.0,
            num_tokens: planned.num_tokens,
            num_draft_tokens: planned.num_draft_tokens,
            replaced_blocks: planned.replaced_blocks.iter().map(|new| (new.table_idx, new.block.0)).collect(),
            new_blocks: block_numbers(&planned.new_blocks),
            sample: planned.samples,
            gated: planned.samples && (facts.is_gated)(planned.seq),
        };
        if planned.kind != RowKind::Continuing {
            row.row = rows.assign(planned.seq);
            let RowFacts { num_prompt_tokens, sampling } = (facts.of_row)(planned.seq);
            batch.added.push(AddedRow {
                row: row.row,
                epoch: row.epoch,
                token_ids: scheduler.tokens(planned.seq).to_vec(),
                num_prompt_tokens,
                num_computed_tokens: planned.start,
                block_table: std::mem::take(&mut row.new_blocks),
                sampling,
            });
        }
        batch.rows.push(row);
    }
    batch
}

fn block_transfer(transfer: &Transfer) -> BlockTransfer {
    BlockTransfer {
        id: transfer.id.0,
        direction: match transfer.direction {
            Direction::Out => SwapDirection::Out,
            Direction::In => SwapDirection::In,
        },
        blocks: transfer.blocks.iter().map(|(block, host)| (block.0, host.0)).collect(),
    }
}

fn block_numbers(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

#[cfg(test)]
mod tests {
    use quire_executor::Executor;
    use quire_executor::testing::ScriptedExecutor;
    use quire_kvcache::{KvCacheConfig, KvCacheManager};
    use quire_scheduler::{Fcfs, NewSequence, SchedulerConfig, SequenceResult, Time};

    use super::*;

    const PROMPT_TOKENS: u32 = 6;

    fn facts(_: SeqId) -> RowFacts {
        RowFacts { num_prompt_tokens: PROMPT_TOKENS, sampling: RowSampling::default() }
    }

    /// The scripted device checks each read and each write against what every row has in its blocks.
    #[test]
    fn forks_copy_the_blocks_that_they_share_and_the_device_follows() {
        let cache = KvCacheManager::new(KvCacheConfig::new(32, 4)).unwrap();
        let mut scheduler = Scheduler::new(SchedulerConfig::new(64), Box::new(Fcfs), cache).unwrap();
        let mut executor =
            ScriptedExecutor::new(ScriptedExecutor::small_capacity(32, 4), |_, position| position as u32);
        let mut rows = RowSlots::new(8);
        let prompt = (100..100 + PROMPT_TOKENS).collect();
        let parent = scheduler.add(NewSequence::new(prompt, 9, Time::ZERO)).unwrap();
        let (mut num_replaced, mut num_steps) = (0, 0);
        while let Some(plan) = scheduler.schedule(Time::ZERO).unwrap() {
            let batch =
                step_batch(&plan, &scheduler, &mut rows, Facts { of_row: facts, is_gated: |_| false });
            num_replaced += batch.rows.iter().map(|row| row.replaced_blocks.len()).sum::<usize>();
            let ticket = executor.submit(batch).unwrap();
            let output = executor.collect(ticket).unwrap();
            let results = plan.rows.iter().zip(&output.rows).map(|(planned, row)| SequenceResult {
                seq: planned.seq,
                epoch: planned.epoch,
                tokens: &row.token_ids,
                finish: None,
            });
            scheduler.commit(plan.step, &results.collect::<Vec<_>>()).unwrap();
            num_steps += 1;
            if num_steps == 1 {
                scheduler.fork(parent, PROMPT_TOKENS).unwrap();
                scheduler.fork(parent, PROMPT_TOKENS).unwrap();
            }
        }
        assert_eq!(executor.control().violations(), []);
        assert!(num_replaced > 0, "a row that the device knew moved to a copy");
    }
}
