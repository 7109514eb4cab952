//! What single rows ask for: log-probabilities, minimum lengths, shared prefixes, copied blocks.

mod common;

use common::{Dice, ECHO, Job, Schedule, backends, next_step, request, run, start};
use quire_executor::{
    AddedRow, Executor, ExecutorError, LocalExecutor, PlannedRow, ProcessorCall, RowFault, RowId, RowMask,
    RowOutput, RowSampling, StepBatch, TokenMask, TokenMasks,
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

#[test]
fn only_allowed_tokens_are_chosen() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let mut job = greedy(Dice(3).prompt(9), 12);
        let free = tokens(&mut executor, &job);
        job.sampling.allowed_token_ids = Some(vec![287, 31, 32, 5]);
        let beside = [greedy(job.prompt.clone(), 12), job.clone()];
        let outputs = run(&mut executor, &beside, &Schedule { run_ahead: true, ..Schedule::plain() });
        assert_eq!(outputs[0].token_ids, free, "{name}: a neighbour is free");
        assert!(outputs[1].token_ids.iter().all(|id| [287, 31, 32, 5].contains(id)), "{name}: {outputs:?}");
        job.sampling.allowed_token_ids = Some(vec![77]);
        assert_eq!(tokens(&mut executor, &job), [77; 12], "{name}");
    }
}

/// Submits a step ahead whose row 0 waits for a mask, and has its mask come late.
#[test]
fn gated_rows_choose_what_their_masks_say_and_others_do_not_wait_for_a_choice() {
    let only = |ids: &[u32]| RowMask::Only(TokenMask::of(common::VOCAB_SIZE, ids.iter().copied()));
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let prompt = Dice(11).prompt(10);
        let free = tokens(&mut executor, &greedy(prompt.clone(), 4));
        let kept = RowSampling { allowed_token_ids: Some(vec![8, 9]), ..RowSampling::default() };
        let mut batch = StepBatch {
            added: vec![
                AddedRow { sampling: RowSampling::default(), ..added(0, &prompt, 0, &[1, 2]) },
                AddedRow { sampling: RowSampling::default(), ..added(1, &prompt, 0, &[3, 4]) },
                AddedRow { sampling: kept, ..added(2, &prompt, 0, &[5, 6]) },
            ],
            rows: (0..3).map(|row| planned(row, 10)).collect(),
            ..StepBatch::default()
        };
        let masks = [
            vec![(RowId(0), only(&[40, 41])), (RowId(2), only(&[9, 10]))],
            vec![],
            vec![(RowId(0), RowMask::AllBut(vec![free[2], 7]))],
            vec![(RowId(2), RowMask::AllBut(vec![8])), (RowId(0), only(&[200]))],
        ];
        let mut open: Option<(usize, quire_executor::Ticket)> = None;
        let mut outputs = Vec::new();
        let give = |executor: &mut LocalExecutor, open: Option<(usize, quire_executor::Ticket)>| {
            let (i, ticket) = open?;
            executor.provide_masks(&ticket, TokenMasks { rows: masks[i].clone() }).unwrap();
            Some(executor.collect(ticket).unwrap().rows)
        };
        for i in 0..masks.len() {
            batch.step = next_step();
            (batch.rows[0].gated, batch.rows[2].gated) = (true, true);
            let ticket = executor.submit(std::mem::take(&mut batch)).unwrap();
            batch.rows = (0..3).map(|row| planned(row, 1)).collect();
            outputs.extend(give(&mut executor, open.replace((i, ticket))));
        }
        outputs.extend(give(&mut executor, open.take()));
        let of = |row: usize| outputs.iter().map(|rows| rows[row].token_ids[0]).collect::<Vec<_>>();
        assert_eq!(of(1), free, "{name}");
        assert!([40, 41].contains(&of(0)[0]) && of(0)[3] == 200, "{name}: {:?}", of(0));
        assert_eq!((of(2)[0], of(2)[3]), (9, 9), "{name}: in the step's mask and the row's own");
        assert!(of(2)[1..3].iter().all(|id| [8, 9].contains(id)), "{name}: its own mask is back");
    }
}

#[test]
fn a_step_that_waits_for_masks_ends_with_the_device_s_reset() {
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let job = greedy(Dice(5).prompt(6), 3);
        let before = tokens(&mut executor, &job);
        let gated = |step| StepBatch {
            step,
            added: vec![added(0, &[1, 2], 0, &[1])],
            rows: vec![PlannedRow { gated: true, ..planned(0, 2) }],
            ..StepBatch::default()
        };
        let step = next_step();
        let waiting = executor.submit(gated(step)).unwrap();
        let error = executor.collect(quire_executor::Ticket { step }).unwrap_err();
        assert!(matches!(error, ExecutorError::NoMasks { .. }));
        executor.reset().unwrap();
        assert!(matches!(executor.collect(waiting), Err(ExecutorError::OutOfOrder { .. })));
        assert_eq!(tokens(&mut executor, &job), before);

        let ticket = executor.submit(gated(next_step())).unwrap();
        let wrong = TokenMasks { rows: vec![(RowId(0), RowMask::Only(TokenMask::all(40)))] };
        executor.provide_masks(&ticket, wrong).unwrap();
        let error = executor.collect(ticket).unwrap_err();
        assert!(matches!(error, ExecutorError::Batch { .. }), "{error:?}");
        executor.reset().unwrap();
        // One that waits holds up nobody who ends the executor.
        let _ticket = executor.submit(gated(next_step())).unwrap();
    }
}

#[test]
fn br_42_a_processor_that_panics_takes_its_own_rows_alone() {
    for (name, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 20));
        let prompt = Dice(4).prompt(10);
        let alone = tokens(&mut executor, &greedy(prompt.clone(), 2));
        let mut bad = added(1, &prompt, 0, &[3, 4]);
        bad.sampling.processors = vec![ProcessorCall { processor: ECHO, args: "no number".into() }];
        let batch = StepBatch {
            added: vec![added(0, &prompt, 0, &[1, 2]), bad],
            rows: vec![planned(0, 10), planned(1, 10)],
            ..StepBatch::default()
        };
        let rows = rows_of_step(&mut executor, batch);
        assert_eq!(rows[0].token_ids, alone[..1], "{name}");
        assert_eq!(rows[1].fault, Some(RowFault::Processors { position: 10 }), "{name}");
        let next = StepBatch { released: vec![RowId(1)], rows: vec![planned(0, 1)], ..StepBatch::default() };
        assert_eq!(rows_of_step(&mut executor, next)[0].token_ids, alone[1..], "{name}");
    }
}
