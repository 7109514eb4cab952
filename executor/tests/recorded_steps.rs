//! Decode steps that are recorded once and replayed, with padding, give what steps give that are not.

mod common;

use std::sync::Arc;

use common::{Dice, Job, Schedule, checkpoint, plan, request, run, run_alone, start};
use quire_executor::{
    AddedRow, KvPool, MemoryRequest, ModelRunner, PlannedRow, RowId, RowOutput, RowSampling, StepBatch,
};
use quire_kernels::{Kernels, reference, testing};
use quire_models::{Architecture, Llama, Loader};

fn wide(enforce_eager: bool) -> MemoryRequest {
    MemoryRequest { max_num_seqs: 16, enforce_eager, ..request(16, 120) }
}

#[test]
fn replayed_and_padded_steps_change_nothing() {
    let mut dice = Dice(5);
    let jobs: Vec<Job> = (0..11)
        .map(|i| Job {
            prompt: dice.prompt(1 + 4 * i),
            sampling: RowSampling {
                temperature: if i % 2 == 0 { 0.0 } else { 1.0 },
                seed: i as u64,
                logprobs: (i % 3 == 0).then_some(2),
                frequency_penalty: if i % 4 == 0 { 0.3 } else { 0.0 },
                ..RowSampling::default()
            },
            num_new: 5 + 2 * i,
        })
        .collect();
    let alone = run_alone(&mut start(reference::kernels(), &wide(false)), &jobs);
    for enforce_eager in [false, true] {
        let mut executor = start(testing::deferred(&reference::kernels()), &wide(enforce_eager));
        for run_ahead in [false, true] {
            let schedule = Schedule { run_ahead, ..Schedule::plain() };
            assert_eq!(run(&mut executor, &jobs, &schedule), alone, "eager: {enforce_eager}");
        }
    }
}

fn runner(kernels: &Kernels, enforce_eager: bool) -> ModelRunner {
    let checkpoint = checkpoint();
    let plan = plan(kernels, &checkpoint, &wide(enforce_eager));
    let model = Llama.build(&Loader::new(&checkpoint, kernels, 160)).unwrap();
    let pool = KvPool::new(kernels, &plan.kv_groups, 16, plan.num_blocks).unwrap();
    ModelRunner::new(kernels.clone(), Arc::from(model), pool, plan.runner, plan.scratch_bytes).unwrap()
}

/// Decodes `num_rows` rows for a few steps. Row 0 lies in block 0, which padding must not write to.
fn decode(runner: &mut ModelRunner, num_rows: u32) -> Vec<RowOutput> {
    let added = |row| AddedRow {
        row: RowId(row),
        epoch: 0,
        token_ids: vec![row + 1],
        num_prompt_tokens: 1,
        num_computed_tokens: 0,
        block_table: vec![row],
        sampling: RowSampling { logprobs: Some(0), ..RowSampling::default() },
    };
    let planned = |row| PlannedRow { row: RowId(row), num_tokens: 1, sample: true, ..PlannedRow::default() };
    let step = |i| {
        let batch = StepBatch {
            step: common::next_step(),
            added: (0..num_rows).filter(|_| i == 0).map(added).collect(),
            released: (0..num_rows).filter(|_| i == 3).map(RowId).collect(),
            rows: (0..num_rows).filter(|_| i < 3).map(planned).collect(),
            ..StepBatch::default()
        };
        runner.run(batch).unwrap().wait(None).unwrap().rows
    };
    (0..4).flat_map(step).collect()
}

#[test]
fn one_recording_serves_all_steps_of_a_size() {
    let kernels = testing::deferred(&reference::kernels());
    let (mut recording, mut eager) = (runner(&kernels, false), runner(&kernels, true));
    for (num_rows, recorded) in [(3, 1), (9, 2), (10, 2), (11, 3), (12, 3), (3, 3)] {
        assert_eq!(decode(&mut recording, num_rows), decode(&mut eager, num_rows), "{num_rows} rows");
        assert_eq!(recording.num_recorded_steps(), recorded, "after {num_rows} rows");
    }
    assert_eq!(eager.num_recorded_steps(), 0);
    let mut plain = runner(&reference::kernels(), false);
    decode(&mut plain, 3);
    assert_eq!(plain.num_recorded_steps(), 0, "a device without graphs records nothing");
}
