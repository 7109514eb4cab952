//! Decode steps that are recorded once and replayed, with padding, give what steps give that are not.

mod common;

use std::sync::Arc;
use std::time::Duration;

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
    runner_with(kernels, enforce_eager, usize::MAX)
}

fn runner_with(kernels: &Kernels, enforce_eager: bool, graph_bytes: usize) -> ModelRunner {
    let checkpoint = checkpoint();
    let mut plan = plan(kernels, &checkpoint, &wide(enforce_eager));
    plan.runner.graph_bytes = graph_bytes;
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

#[test]
fn a_warm_runner_records_nothing_more() {
    let kernels = testing::deferred(&reference::kernels());
    let (mut warm, mut eager) = (runner(&kernels, false), runner(&kernels, true));
    warm.warm_up(Duration::from_secs(3600)).unwrap();
    let recorded = warm.num_recorded_steps();
    assert_eq!(recorded, 12, "1 to 8, 10, 12, 14, 16");
    for num_rows in [3, 11, 16] {
        assert_eq!(decode(&mut warm, num_rows), decode(&mut eager, num_rows), "{num_rows} rows");
    }
    assert_eq!(warm.num_recorded_steps(), recorded);
    eager.warm_up(Duration::from_secs(3600)).unwrap();
    assert_eq!(eager.num_recorded_steps(), 0);
}

#[test]
fn recordings_stay_within_their_memory() {
    let kernels = testing::deferred(&reference::kernels());
    let bytes_of = |max_bytes| {
        let mut runner = runner_with(&kernels, false, max_bytes);
        runner.warm_up(Duration::from_secs(3600)).unwrap();
        (runner.num_recorded_steps(), decode(&mut runner, 12))
    };
    let (all, expected) = bytes_of(usize::MAX);
    let (few, rows) = bytes_of(3 * testing::RECORDING_BYTES);
    assert_eq!((all, few), (12, 3));
    assert_eq!(rows, expected, "what is not recorded is computed all the same");
}
