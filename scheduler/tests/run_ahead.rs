//! What differs when a step is planned before the last one is committed.

use quire_kvcache::{KvCacheConfig, KvCacheManager};
use quire_scheduler::{
    CommitError, Fcfs, FinishReason, InputToken, NewSequence, RowKind, Scheduler, SchedulerConfig, SeqId,
    SequenceResult, StepId, StepPlan, Time,
};

fn scheduler(num_blocks: u32, max_prefill_chunk: Option<u32>) -> Scheduler {
    let config = SchedulerConfig { max_prefill_chunk, ..SchedulerConfig::new(512) };
    let cache = KvCacheManager::new(KvCacheConfig::new(num_blocks, 16)).unwrap();
    Scheduler::new(config, Box::new(Fcfs), cache).unwrap()
}

fn add(scheduler: &mut Scheduler, num_prompt_tokens: u32, max_output_tokens: u32) -> SeqId {
    let prompt = (0..num_prompt_tokens).collect();
    scheduler.add(NewSequence::new(prompt, max_output_tokens, Time::ZERO)).unwrap()
}

fn plan(scheduler: &mut Scheduler) -> StepPlan {
    scheduler.schedule(Time::ZERO).unwrap().expect("there is something to compute")
}

/// The results of a plan in which every row that samples samples `token`.
fn results<'a>(plan: &StepPlan, token: &'a [u32], finish: Option<FinishReason>) -> Vec<SequenceResult<'a>> {
    let sampling = plan.rows.iter().filter(|row| row.samples);
    sampling.map(|row| SequenceResult { seq: row.seq, epoch: row.epoch, tokens: token, finish }).collect()
}

#[test]
fn an_input_that_is_not_read_yet_is_named_by_step_and_row() {
    let mut scheduler = scheduler(16, None);
    let (a, b) = (add(&mut scheduler, 20, 9), add(&mut scheduler, 5, 9));
    let first = plan(&mut scheduler);
    assert_eq!(
        first.rows.iter().map(|row| (row.seq, row.kind)).collect::<Vec<_>>(),
        [(a, RowKind::New), (b, RowKind::New)]
    );
    assert!(first.rows.iter().all(|row| row.input == InputToken::Known && row.samples));
    let second = plan(&mut scheduler);
    let inputs: Vec<_> = second.rows.iter().map(|row| (row.start, row.num_tokens, row.input)).collect();
    let sampled = |row| InputToken::Sampled { step: first.step, row };
    assert_eq!(inputs, [(20, 1, sampled(0)), (5, 1, sampled(1))]);
    assert!(second.rows.iter().all(|row| row.new_blocks.is_empty()), "the blocks have been told of");

    // Once the token is read, and if nothing is in flight, the input is known again.
    scheduler.commit(first.step, &results(&first, &[7], None)).unwrap();
    scheduler.commit(second.step, &results(&second, &[8], None)).unwrap();
    assert_eq!(scheduler.tokens(b), [0, 1, 2, 3, 4, 7, 8]);
    assert_eq!(plan(&mut scheduler).rows[0].input, InputToken::Known);
}

#[test]
fn nothing_is_planned_past_the_bound_on_output() {
    let mut scheduler = scheduler(16, None);
    let seq = add(&mut scheduler, 20, 2);
    let (first, second) = (plan(&mut scheduler), plan(&mut scheduler));
    assert_eq!(scheduler.schedule(Time::ZERO), Ok(None), "two tokens are in flight, and two are wanted");
    scheduler.commit(first.step, &results(&first, &[7], None)).unwrap();
    let report = scheduler.commit(second.step, &results(&second, &[7], None)).unwrap();
    assert_eq!((report.finished[0].id, report.finished[0].reason), (seq, FinishReason::Length));
}

#[test]
fn what_was_computed_past_a_finish_is_dropped_and_its_blocks_retire() {
    let mut scheduler = scheduler(16, None);
    let seq = add(&mut scheduler, 31, 100);
    let (first, second) = (plan(&mut scheduler), plan(&mut scheduler));
    let report = scheduler.commit(first.step, &results(&first, &[7], Some(FinishReason::Stop))).unwrap();
    assert_eq!(report.finished[0].tokens.len(), 32);
    assert!(!scheduler.has_unfinished());
    let usage = scheduler.stats().blocks;
    assert_eq!((usage.live, usage.retiring), (2, 2), "the second step still writes there");
    let report = scheduler.commit(second.step, &results(&second, &[7], None)).unwrap();
    assert_eq!((report.accepted.len(), report.finished.len(), report.num_dropped), (0, 0, 1));
    let usage = scheduler.stats().blocks;
    assert_eq!((usage.live, usage.cached), (0, 1), "the block of position 31 is not in the cache");
    let next = add(&mut scheduler, 5, 1);
    let plan = plan(&mut scheduler);
    assert_eq!((plan.released, plan.rows[0].seq), (vec![seq], next));
}

#[test]
fn only_what_is_committed_enters_the_prefix_cache() {
    let mut scheduler = scheduler(16, Some(32));
    let seq = add(&mut scheduler, 100, 1);
    let (first, _second) = (plan(&mut scheduler), plan(&mut scheduler));
    scheduler.commit(first.step, &[]).unwrap();
    let hashes = scheduler.cache().hasher().hash(scheduler.tokens(seq), Default::default());
    assert_eq!(scheduler.cache().num_cached_tokens(scheduler.tokens(seq), &hashes), 32);
}

#[test]
fn results_must_belong_to_their_step() {
    let mut scheduler = scheduler(16, None);
    let seq = add(&mut scheduler, 20, 9);
    let (first, second) = (plan(&mut scheduler), plan(&mut scheduler));
    let good = results(&first, &[7], None);
    let out_of_order = CommitError::OutOfOrder { given: second.step, expected: Some(first.step) };
    assert_eq!(scheduler.commit(second.step, &good), Err(out_of_order));
    assert_eq!(scheduler.commit(first.step, &[]), Err(CommitError::Missing(seq)));
    let stranger = [good[0], SequenceResult { seq: SeqId(9), ..good[0] }];
    assert_eq!(scheduler.commit(first.step, &stranger), Err(CommitError::Unexpected(SeqId(9))));
    let none = results(&first, &[], None);
    assert_eq!(scheduler.commit(first.step, &none), Err(CommitError::NumTokens { seq, given: 0, max: 1 }));
    let many = results(&first, &[1, 2], None);
    assert_eq!(scheduler.commit(first.step, &many), Err(CommitError::NumTokens { seq, given: 2, max: 1 }));
    assert_eq!(scheduler.commit(first.step, &good).unwrap().accepted, [(seq, 1)], "nothing had changed");
    scheduler.commit(second.step, &results(&second, &[7], None)).unwrap();
    let nothing_open = CommitError::OutOfOrder { given: StepId(3), expected: None };
    assert_eq!(scheduler.commit(StepId(3), &[]), Err(nothing_open));
}

#[test]
fn a_device_error_ends_what_was_in_flight_and_restarts_the_rest() {
    let mut scheduler = scheduler(16, None);
    let (a, b) = (add(&mut scheduler, 20, 9), add(&mut scheduler, 20, 1));
    let first = plan(&mut scheduler);
    let second = plan(&mut scheduler);
    assert_eq!(second.rows.len(), 1, "b has all its output in flight");
    let failed = scheduler.fail_open_steps();
    assert_eq!(
        failed.iter().map(|seq| (seq.id, seq.reason)).collect::<Vec<_>>(),
        [(a, FinishReason::Error), (b, FinishReason::Error)]
    );
    assert_eq!(scheduler.num_open_steps(), 0);
    assert!(scheduler.commit(first.step, &[]).is_err());
    assert_eq!(scheduler.stats().blocks.free, 16);
}

#[test]
fn what_ended_in_an_error_is_not_found_in_the_prefix_cache() {
    let mut scheduler = scheduler(16, None);
    for (finish, num_cached_tokens) in
        [(FinishReason::Error, 0), (FinishReason::Stop, 0), (FinishReason::Stop, 32)]
    {
        add(&mut scheduler, 40, 9);
        let plan = plan(&mut scheduler);
        assert_eq!(plan.rows[0].start, num_cached_tokens);
        scheduler.commit(plan.step, &results(&plan, &[], Some(finish))).unwrap();
    }
}
