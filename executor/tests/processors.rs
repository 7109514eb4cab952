//! Logits processors: what they are shown and told, whatever the schedule; what becomes of a panic.

mod common;

use std::sync::{Arc, Mutex};

use common::{
    Dice, ECHO, Job, SCALE, SHIFT, Schedule, backends, next_step, request, run, run_alone, start, start_with,
};
use quire_executor::{
    AddedRow, BatchError, Executor, ExecutorError, LogitsProcessor, LogitsProcessors, PlannedRow,
    ProcessorCall, RowId, RowLogits, RowSampling, StepBatch,
};
use serde_json::json;

fn job(seed: u64, processors: Vec<ProcessorCall>) -> Job {
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.0 };
    let sampling = RowSampling { temperature, seed, processors, logprobs: Some(1), ..RowSampling::default() };
    Job { prompt: Dice(seed).prompt(7), sampling, num_new: 20 }
}

fn call(processor: u32, args: serde_json::Value) -> ProcessorCall {
    ProcessorCall { processor, args }
}

/// The last token is known to the device alone while a step runs ahead, and comes with the row after a preemption.
#[test]
fn a_processor_sees_the_last_token_whatever_the_schedule() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 40));
        let plain = run_alone(&mut executor, &[job(4, vec![])]).remove(0);
        let jobs = [
            job(4, vec![call(ECHO, json!(1000.0))]),
            job(5, vec![call(ECHO, json!(-1000.0))]),
            job(4, vec![]),
        ];
        let alone = run_alone(&mut executor, &jobs);
        let last = *jobs[0].prompt.last().unwrap();
        assert_eq!(alone[0].token_ids, [last; 20], "{name}: an echo");
        assert!(alone[0].logprobs[0].logprob < -1e-3, "{name}: of the logits before it");
        let spoken: Vec<u32> = [&jobs[1].prompt[6..], &alone[1].token_ids].concat();
        assert!(spoken.windows(2).all(|pair| pair[0] != pair[1]), "{name}: no stutter, {spoken:?}");
        assert_eq!(alone[2], plain, "{name}: a neighbour");
        for run_ahead in [false, true] {
            let schedule = Schedule { chunk: 3, run_ahead, preempt_after: vec![4, 9], chaos: None };
            assert_eq!(run(&mut executor, &jobs, &schedule), alone, "{name}, {schedule:?}");
        }
    }
}

#[test]
fn greedy_rows_are_not_shown_to_what_cannot_change_them() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 40));
        let shifted = [job(4, vec![call(SHIFT, json!(null))]), job(5, vec![call(SHIFT, json!(null))])];
        let plain = [job(4, vec![]), job(5, vec![])];
        assert_eq!(run_alone(&mut executor, &shifted), run_alone(&mut executor, &plain), "{name}");
    }
}

/// Both in one step, each on rows of its own and on one that they share, in the order in which they were registered.
#[test]
fn two_processors_in_one_batch_run_in_their_order() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 60));
        let (echo, scale) = (call(ECHO, json!(2.0)), call(SCALE, json!(3.0)));
        let jobs = [
            job(3, vec![echo.clone()]),
            job(3, vec![scale.clone()]),
            job(3, vec![scale, echo.clone()]),
            job(3, vec![]),
        ];
        let alone = run_alone(&mut executor, &jobs);
        for (i, answer) in alone.iter().enumerate() {
            assert!(alone[..i].iter().all(|other| other.token_ids != answer.token_ids), "{name}: {alone:?}");
        }
        // (logit + 2) * 3, and not logit * 3 + 2: as if it had been asked for so much.
        let triple = job(3, vec![call(ECHO, json!(6.0)), call(SCALE, json!(1.0))]);
        assert_ne!(alone[2].token_ids, run_alone(&mut executor, &[triple]).remove(0).token_ids);
        for chaos in 0..6 {
            let schedule =
                Schedule { chunk: 5, run_ahead: chaos % 2 == 1, preempt_after: vec![], chaos: Some(chaos) };
            assert_eq!(run(&mut executor, &jobs, &schedule), alone, "{name}, {schedule:?}");
        }
    }
}

/// Writes down what it is told.
struct Witness(Arc<Mutex<Vec<String>>>);

impl LogitsProcessor for Witness {
    fn added(&mut self, row: RowId, token_ids: &[u32], num_prompt_tokens: usize, args: &serde_json::Value) {
        let line = format!("added {} {token_ids:?} {num_prompt_tokens} {args}", row.0);
        self.0.lock().unwrap().push(line);
    }

    fn released(&mut self, row: RowId) {
        self.0.lock().unwrap().push(format!("released {}", row.0));
    }

    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        for row in rows {
            // Always the same token, so that what it is shown is known.
            row.logits[5] = 1e6;
            let line = format!("process {} {:?} {:?}", row.row.0, row.token_ids, row.output());
            self.0.lock().unwrap().push(line);
        }
    }
}

fn added(row: u32, token_ids: &[u32], num_prompt_tokens: u32, processors: Vec<ProcessorCall>) -> AddedRow {
    AddedRow {
        row: RowId(row),
        epoch: 0,
        token_ids: token_ids.to_vec(),
        num_prompt_tokens,
        num_computed_tokens: 0,
        block_table: vec![row],
        sampling: RowSampling { processors, ..RowSampling::default() },
    }
}

fn planned(row: u32, num_tokens: u32, sample: bool) -> PlannedRow {
    PlannedRow { row: RowId(row), num_tokens, sample, ..PlannedRow::default() }
}

/// Rows come, are computed in part, generate, go, and come again in another's place; nothing is told of those that do not
/// ask, nor in steps in which nobody does.
#[test]
fn a_processor_is_told_of_each_change_of_its_rows_and_of_nothing_else() {
    for (name, kernels) in backends() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&lines);
        let processors = LogitsProcessors::new().with("witness", move || Witness(Arc::clone(&shared)));
        let mut executor = start_with(kernels(), &request(16, 20), processors);
        let ask = |args| vec![call(0, args)];
        let steps = [
            (
                vec![],
                vec![added(0, &[1, 2, 3], 3, ask(json!(7))), added(1, &[4, 4], 2, vec![])],
                vec![planned(0, 2, false), planned(1, 2, true)],
                vec!["added 0 [1, 2, 3] 3 7"],
            ),
            (vec![], vec![], vec![planned(0, 1, true)], vec!["process 0 [1, 2, 3] []"]),
            (vec![], vec![], vec![planned(1, 1, true)], vec![]),
            (
                vec![],
                vec![],
                vec![planned(0, 1, true), planned(1, 1, true)],
                vec!["process 0 [1, 2, 3, 5] [5]"],
            ),
            (
                vec![RowId(0), RowId(1)],
                vec![added(1, &[1, 2, 3, 5, 5], 3, ask(json!(null)))],
                vec![planned(1, 5, true)],
                vec!["released 0", "added 1 [1, 2, 3, 5, 5] 3 null", "process 1 [1, 2, 3, 5, 5] [5, 5]"],
            ),
            (vec![RowId(1)], vec![], vec![], vec!["released 1"]),
        ];
        for (i, (released, added, rows, expected)) in steps.into_iter().enumerate() {
            let batch = StepBatch { step: next_step(), released, added, rows, ..StepBatch::default() };
            let ticket = executor.submit(batch).unwrap();
            executor.collect(ticket).unwrap();
            assert_eq!(std::mem::take(&mut *lines.lock().unwrap()), expected, "{name}, step {i}");
        }
    }
}

#[test]
fn a_processor_that_the_device_does_not_have_is_refused() {
    let (name, kernels) = backends()[0];
    let mut executor = start(kernels(), &request(16, 20));
    let batch = StepBatch {
        step: next_step(),
        added: vec![added(0, &[1], 1, vec![call(3, json!(null))])],
        rows: vec![planned(0, 1, true)],
        ..StepBatch::default()
    };
    let ticket = executor.submit(batch).unwrap();
    let Err(ExecutorError::Batch { source, .. }) = executor.collect(ticket) else { panic!("{name}") };
    assert_eq!(source, BatchError::Processor { row: RowId(0), given: 3, num_processors: 3 });
}
