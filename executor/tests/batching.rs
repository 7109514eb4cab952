//! A sequence's tokens and log-probabilities are those of its lone run, bit for bit, however it is scheduled.

mod common;

use common::{Answer, Dice, Job, Schedule, backends, request, run, run_alone, start};
use quire_executor::{LocalExecutor, RowSampling};

/// Jobs that differ in length and in how they sample.
fn jobs() -> Vec<Job> {
    let sampling = [
        RowSampling { logprobs: Some(3), ..RowSampling::default() },
        RowSampling { temperature: 1.0, seed: 42, ..RowSampling::default() },
        RowSampling { temperature: 0.8, seed: 7, top_p: 0.9, logprobs: Some(0), ..RowSampling::default() },
        RowSampling { temperature: 1.5, seed: 7, top_k: 1, ..RowSampling::default() },
        RowSampling {
            temperature: 0.7,
            seed: 1 << 40,
            min_p: 0.05,
            presence_penalty: 0.5,
            repetition_penalty: 1.3,
            ..RowSampling::default()
        },
        RowSampling { prompt_logprobs: Some(2), ..RowSampling::default() },
        RowSampling {
            temperature: 1.0,
            seed: 42,
            sequence_index: 1,
            logit_bias: vec![(5, 4.0), (6, -100.0)],
            min_tokens: 9,
            end_token_ids: vec![2, 5],
            ..RowSampling::default()
        },
    ];
    let lens = [1, 17, 32, 5, 48, 77, 16];
    let mut dice = Dice(1);
    sampling
        .into_iter()
        .zip(lens)
        .map(|(sampling, len)| Job { prompt: dice.prompt(len), sampling, num_new: 24 })
        .collect()
}

#[track_caller]
fn check(executor: &mut LocalExecutor, jobs: &[Job], alone: &[Answer], schedule: &Schedule) {
    let together = run(executor, jobs, schedule);
    for (i, (given, expected)) in together.iter().zip(alone).enumerate() {
        assert_eq!(given, expected, "job {i} under {schedule:?}");
    }
}

#[test]
fn br_33_br_43_a_batch_gives_what_each_gets_alone() {
    let jobs = jobs();
    for (name, kernels) in backends() {
        let mut first = start(kernels(), &request(16, 100));
        let alone = run_alone(&mut first, &jobs);
        assert_ne!(
            alone[1].token_ids, alone[6].token_ids,
            "{name}: another sequence index draws other numbers"
        );
        for block_size in [4, 16] {
            let mut executor = start(kernels(), &request(block_size, 400));
            for chunk in [1, 7, 64] {
                for run_ahead in [false, true] {
                    check(&mut executor, &jobs, &alone, &Schedule { chunk, run_ahead, ..Schedule::plain() });
                }
            }
        }
    }
}

#[test]
fn random_schedules_with_preemption_change_nothing() {
    let jobs = jobs();
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(8, 200));
        let alone = run_alone(&mut executor, &jobs);
        for seed in 0..8 {
            let schedule =
                Schedule { chunk: 20, run_ahead: seed % 2 == 0, chaos: Some(seed), ..Schedule::plain() };
            check(&mut executor, &jobs, &alone, &schedule);
        }
    }
}

#[test]
fn br_11_penalties_count_the_same_after_a_preemption() {
    let sampling = RowSampling {
        presence_penalty: 1.5,
        frequency_penalty: 0.7,
        repetition_penalty: 1.2,
        ..RowSampling::default()
    };
    let job = Job { prompt: Dice(3).prompt(20), sampling, num_new: 40 };
    let unpenalized = Job { sampling: RowSampling::default(), ..job.clone() };
    let jobs = [job, unpenalized];
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 40));
        let alone = run_alone(&mut executor, &jobs);
        assert_ne!(alone[0].token_ids, alone[1].token_ids, "the penalties do something");
        for run_ahead in [false, true] {
            for preempt_after in [vec![1], vec![10], vec![39], vec![1, 10, 39]] {
                check(
                    &mut executor,
                    &jobs,
                    &alone,
                    &Schedule { run_ahead, preempt_after, ..Schedule::plain() },
                );
            }
        }
    }
}

#[test]
fn br_12_each_token_comes_once_over_three_preemptions() {
    let job = Job { prompt: Dice(4).prompt(30), sampling: RowSampling::default(), num_new: 60 };
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 40));
        let alone = run_alone(&mut executor, std::slice::from_ref(&job));
        assert_eq!(alone[0].token_ids.len(), 60);
        for run_ahead in [false, true] {
            let preempt_after = vec![5, 20, 41];
            let schedule = Schedule { chunk: 7, run_ahead, preempt_after, chaos: None };
            check(&mut executor, std::slice::from_ref(&job), &alone, &schedule);
        }
    }
}

#[test]
fn a_row_can_be_preempted_in_the_middle_of_its_prompt_log_probabilities() {
    let sampling = RowSampling { prompt_logprobs: Some(1), ..RowSampling::default() };
    let job = Job { prompt: Dice(5).prompt(96), sampling, num_new: 3 };
    let jobs = [job.clone(), Job { prompt: Dice(6).prompt(9), ..job }];
    for (_, kernels) in backends() {
        let mut executor = start(kernels(), &request(16, 40));
        let alone = run_alone(&mut executor, &jobs);
        assert_eq!(alone[0].prompt_logprobs.len(), 95, "every prompt token but the first");
        for seed in 0..4 {
            let schedule = Schedule { chunk: 32, run_ahead: true, preempt_after: vec![0], chaos: Some(seed) };
            check(&mut executor, &jobs, &alone, &schedule);
        }
    }
}
