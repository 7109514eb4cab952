//! From the scheduler's plan to the executor's batch.

use quire_executor::{AddedRow, PlannedRow, StepBatch};
use quire_kvcache::BlockId;
use quire_scheduler::{RowKind, Scheduler, StepPlan};

use super::active::Requests;
use super::rows::RowSlots;

/// Writes a plan as the difference that the device is told: sequences become rows, blocks become numbers.
pub(super) fn step_batch(
    plan: &StepPlan,
    scheduler: &Scheduler,
    requests: &Requests,
    rows: &mut RowSlots,
) -> StepBatch {
    let mut batch = StepBatch {
        step: plan.step.0,
        released: plan.released.iter().filter_map(|&seq| rows.release(seq)).collect(),
        block_copies: plan.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect(),
        ..StepBatch::default()
    };
    for planned in &plan.rows {
        assert!(planned.replaced_blocks.is_empty(), "only forks write shared blocks, and nothing is forked");
        let mut row = PlannedRow {
            row: rows.get(planned.seq).unwrap_or_default(),
            epoch: planned.epoch.0,
            num_tokens: planned.num_tokens,
            num_draft_tokens: planned.num_draft_tokens,
            new_blocks: block_numbers(&planned.new_blocks),
            sample: planned.samples,
        };
        if planned.kind != RowKind::Continuing {
            row.row = rows.assign(planned.seq);
            let request = requests.get(planned.seq).expect("a planned sequence belongs to a request");
            batch.added.push(AddedRow {
                row: row.row,
                epoch: row.epoch,
                token_ids: scheduler.tokens(planned.seq).to_vec(),
                num_prompt_tokens: request.num_prompt_tokens,
                num_computed_tokens: planned.start,
                block_table: std::mem::take(&mut row.new_blocks),
                sampling: request.sampling.clone(),
            });
        }
        batch.rows.push(row);
    }
    batch
}

fn block_numbers(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}
