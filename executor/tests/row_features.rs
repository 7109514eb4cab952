//! What single rows ask for: log-probabilities, minimum lengths, shared prefixes, copied blocks.

mod common;

use common::{Dice, Job, Schedule, backends, next_step, request, run, start};
use quire_executor::{
    AddedRow, Executor, LocalExecutor, PlannedRow, RowFault, RowId, RowOutput, RowSampling, StepBatch,
};

fn greedy(prompt: Vec<u32>, num_new: usize) -> Job {
    Job { prompt, sampling: RowSampling::default(), num_new }
}

fn tokens(executor: &mut LocalExecutor, job: &Job) -> Vec<u32> {
    run(executor, std::slice::from_ref(job), &Schedule::plain()).remove(0).token_ids
}

#[test]
fn a_text_has_the_same_log_probabilities_generated_or_given() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let mut job = greedy(Dice(1).prompt(10), 30);
        job.sampling = RowSampling { temperature: 1.0, seed: 3, logprobs: Some(4), ..job.sampling };
        let generated = run(&mut executor, std::slice::from_ref(&job), &Schedule::plain()).remove(0);

        let mut again = greedy([&job.prompt[..], &generated.token_ids].concat(), 1);
        again.sampling.prompt_logprobs = Some(4);
        let schedule = Schedule { chunk: 13, ..Schedule::plain() };
        let given = run(&mut executor, std::slice::from_ref(&again), &schedule).remove(0);
        assert_eq!(given.prompt_logprobs[9..], generated.logprobs);
        for entry in &generated.logprobs {
            let better = entry.top.iter().filter(|(_, logprob)| *logprob >= entry.logprob).count();
            assert!(entry.logprob.is_finite() && (entry.rank as usize == better || better == 4), "{entry:?}");
        }
    }
}

#[test]
fn br_30_min_tokens_counts_output_alone() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let mut job = greedy(Dice(2).prompt(50), 12);
        job.sampling.logit_bias = vec![(2, 1000.0)];
        assert_eq!(tokens(&mut executor, &job)[..2], [2, 2], "the end token is the best one always");
        job.sampling.end_token_ids = vec![2, 287];
        job.sampling.min_tokens = 9;
        let given = tokens(&mut executor, &job);
        assert!(given[..9].iter().all(|id| ![2, 287].contains(id)), "{given:?}");
        assert_eq!(given[9..], [2, 2, 2]);
    }
}

#[test]
fn br_32_tiny_temperatures_are_greedy() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let mut job = greedy(Dice(7).prompt(12), 8);
        let expected = tokens(&mut executor, &job);
        for temperature in [1e-7, 1e-4] {
            for top_p in [1.0, 1e-4] {
                job.sampling = RowSampling { temperature, top_p, seed: 5, ..RowSampling::default() };
                assert_eq!(tokens(&mut executor, &job), expected, "temperature {temperature}, top_p {top_p}");
            }
        }
    }
}

#[test]
fn br_36_penalties_read_the_prompt_and_leave_neighbours_alone() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 40));
        let prompt: Vec<u32> = vec![0, 287, 287, 1];
        let mut penalized = greedy(prompt.clone(), 20);
        penalized.sampling.repetition_penalty = 1.1;
        let jobs = [greedy(prompt, 20), penalized];
        let alone = common::run_alone(&mut executor, &jobs);
        assert_eq!(run(&mut executor, &jobs, &Schedule::plain()), alone);
    }
}

fn added(row: u32, ids: &[u32], num_computed: usize, block_table: &[u32]) -> AddedRow {
    AddedRow {
        row: RowId(row),
        epoch: 0,
        token_ids: ids.to_vec(),
        num_prompt_tokens: ids.len() as u32,
        num_computed_tokens: num_computed as u32,
        block_table: block_table.to_vec(),
        sampling: RowSampling { logprobs: Some(2), ..RowSampling::default() },
    }
}

fn planned(row: u32, num_tokens: usize) -> PlannedRow {
    PlannedRow { row: RowId(row), num_tokens: num_tokens as u32, sample: true, ..PlannedRow::default() }
}

/// Runs one step; what the last of its rows gave.
fn step(executor: &mut LocalExecutor, batch: StepBatch) -> RowOutput {
    rows_of_step(executor, batch).pop().unwrap_or_default()
}

fn rows_of_step(executor: &mut LocalExecutor, mut batch: StepBatch) -> Vec<RowOutput> {
    batch.step = next_step();
    let ticket = executor.submit(batch).unwrap();
    executor.collect(ticket).unwrap().rows
}

#[test]
fn br_17_a_prefix_hit_gives_what_a_miss_gives() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let longer = Dice(8).prompt(40);
        let rows = vec![planned(0, 40)];
        step(
            &mut executor,
            StepBatch { added: vec![added(0, &longer, 0, &[9, 3, 5])], rows, ..StepBatch::default() },
        );
        for len in [15, 16, 17, 32, 33] {
            let ids = &longer[..len];
            let hit = (len - 1) / 16 * 16;
            let table: Vec<u32> = [9, 3].into_iter().take(hit / 16).chain([11, 12, 13]).collect();
            let mut run = |num_computed: usize, table: &[u32]| {
                let added = vec![added(1, ids, num_computed, table)];
                let rows = vec![planned(1, len - num_computed)];
                let output = step(&mut executor, StepBatch { added, rows, ..StepBatch::default() });
                step(&mut executor, StepBatch { released: vec![RowId(1)], ..StepBatch::default() });
                output
            };
            let miss = run(0, &[14, 15, 16]);
            assert_eq!(run(hit, &table), miss, "{len} tokens, {hit} of them cached");
        }
    }
}

#[test]
fn a_fork_goes_on_in_its_copy_of_a_block() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let ids = Dice(9).prompt(20);
        let rows = vec![planned(0, 20)];
        let alone = step(
            &mut executor,
            StepBatch { added: vec![added(0, &ids, 0, &[2, 4])], rows, ..StepBatch::default() },
        );
        // The fork shares block 2 and copies the partial block 4; its parent writes to 4 in the same step.
        let batch = StepBatch {
            added: vec![added(1, &ids, 19, &[2, 6])],
            block_copies: vec![(4, 6)],
            rows: vec![planned(0, 1), planned(1, 1)],
            ..StepBatch::default()
        };
        let fork = step(&mut executor, batch);
        assert_eq!((fork.token_ids, fork.logprobs), (alone.token_ids, alone.logprobs));
    }
}

/// The mirror image: the fork keeps the shared block, and a row that the device knows moves to the copy.
#[test]
fn a_known_row_goes_on_in_the_block_that_replaced_its_own() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let parent = Dice(9).prompt(20);
        let forked = [&parent[..], &[77]].concat();
        let answers = |outputs: Vec<RowOutput>| -> Vec<_> {
            outputs.into_iter().map(|row| (row.token_ids, row.logprobs)).collect()
        };
        let mut lone = |ids: &[u32]| {
            let batch = StepBatch {
                added: vec![added(0, ids, 0, &[10, 11])],
                rows: vec![planned(0, ids.len())],
                ..StepBatch::default()
            };
            let mut outputs = rows_of_step(&mut executor, batch);
            for _ in 0..3 {
                outputs.extend(rows_of_step(
                    &mut executor,
                    StepBatch { rows: vec![planned(0, 1)], ..StepBatch::default() },
                ));
            }
            step(&mut executor, StepBatch { released: vec![RowId(0)], ..StepBatch::default() });
            answers(outputs)
        };
        let (lone_parent, lone_fork) = (lone(&parent), lone(&forked));

        let mut outputs = [vec![], vec![]];
        let batch = StepBatch {
            added: vec![added(0, &parent, 0, &[2, 4])],
            rows: vec![planned(0, 20)],
            ..StepBatch::default()
        };
        outputs[0].extend(rows_of_step(&mut executor, batch));
        // Both write the place of token 20 in this step: the fork in block 4, its parent in the copy.
        let moved = PlannedRow { replaced_blocks: vec![(1, 6)], ..planned(0, 1) };
        let mut batch = StepBatch {
            added: vec![added(1, &forked, 20, &[2, 4])],
            block_copies: vec![(4, 6)],
            rows: vec![moved, planned(1, 1)],
            ..StepBatch::default()
        };
        for _ in 0..3 {
            let rows = rows_of_step(&mut executor, std::mem::take(&mut batch));
            outputs.iter_mut().zip(rows).for_each(|(all, row)| all.push(row));
            batch.rows = vec![planned(0, 1), planned(1, 1)];
        }
        let [given_parent, given_fork] = outputs.map(answers);
        assert_eq!(given_parent, lone_parent, "{name}: the parent");
        assert_eq!(given_fork, lone_fork[..3], "{name}: the fork");
    }
}

#[test]
fn a_row_without_a_token_says_where_and_leaves_its_neighbour_alone() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let prompt = Dice(4).prompt(10);
        let alone = tokens(&mut executor, &greedy(prompt.clone(), 3));

        let mut nothing_left = added(1, &prompt, 0, &[3, 4]);
        let all_tokens = 0..common::VOCAB_SIZE as u32;
        nothing_left.sampling.logit_bias = all_tokens.map(|token| (token, f32::NEG_INFINITY)).collect();
        let mut batch = StepBatch {
            added: vec![added(0, &prompt, 0, &[1, 2]), nothing_left],
            rows: vec![planned(0, 10), planned(1, 10)],
            ..StepBatch::default()
        };
        // The steps after it are open or planned before anybody knows.
        let tickets: Vec<_> = (0..2)
            .map(|_| {
                batch.step = next_step();
                let ticket = executor.submit(std::mem::take(&mut batch)).unwrap();
                batch.rows = vec![planned(0, 1), planned(1, 1)];
                ticket
            })
            .collect();
        let mut outputs: Vec<_> =
            tickets.into_iter().map(|ticket| executor.collect(ticket).unwrap().rows).collect();
        outputs.push(rows_of_step(&mut executor, batch));
        for (i, rows) in outputs.iter().enumerate() {
            assert_eq!((&rows[0].token_ids[..], rows[0].fault), (&alone[i..=i], None), "{name}, step {i}");
            let fault = RowFault::NoFiniteLogit { position: 10 + i as u32 };
            assert_eq!((&rows[1].token_ids[..], rows[1].fault), (&[][..], Some(fault)), "{name}, step {i}");
            assert_eq!((rows[0].logprobs.len(), rows[1].logprobs.len()), (1, 0));
        }
    }
}
