//! What happens when a step, a batch or a device fails.

mod common;

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use common::{Dice, Job, Schedule, checkpoint, next_step, plan, request, run, start};
use quire_executor::{
    AddedRow, BatchError, Executor, ExecutorError, LocalExecutor, PlannedRow, RowId, RowSampling, StepBatch,
    WorkerConfig,
};
use quire_kernels::{
    AttentionArgs, AttentionKernels, DeviceId, Dispatch, Error, Kernels, KvGroupSpec, KvLayer, KvLayout,
    Part, Result, StepCtx, Tensor, reference, testing,
};

fn batch(token_id: u32) -> StepBatch {
    let row = RowId(0);
    StepBatch {
        step: next_step(),
        added: vec![AddedRow {
            row,
            epoch: 0,
            token_ids: vec![token_id, 7],
            num_prompt_tokens: 2,
            num_computed_tokens: 0,
            block_table: vec![0],
            sampling: RowSampling { repetition_penalty: 1.1, ..RowSampling::default() },
        }],
        rows: vec![PlannedRow { row, num_tokens: 2, sample: true, ..PlannedRow::default() }],
        ..StepBatch::default()
    }
}

#[test]
fn br_36_a_bad_batch_fails_every_open_step_until_reset() {
    let mut executor = start(reference::kernels(), &request(16, 20));
    let job = Job { prompt: Dice(1).prompt(5), sampling: RowSampling::default(), num_new: 4 };
    let before = run(&mut executor, std::slice::from_ref(&job), &Schedule::plain());

    let first = executor.submit(batch(common::VOCAB_SIZE as u32)).unwrap();
    let second = executor.submit(StepBatch { step: next_step(), ..StepBatch::default() }).unwrap();
    let error = executor.collect(first).unwrap_err();
    let ExecutorError::Batch { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*source, BatchError::TokenId { row: RowId(0), token_id: 288, vocab_size: 288 });
    assert_eq!(error.source().unwrap().to_string(), "row 0 holds token 288, the vocabulary has 288");
    assert!(matches!(executor.collect(second), Err(ExecutorError::Dropped { .. })));
    assert!(matches!(executor.submit(batch(1)), Err(ExecutorError::Dropped { .. })));

    executor.reset().unwrap();
    assert_eq!(run(&mut executor, &[job], &Schedule::plain()), before, "after a reset it works as before");
}

/// Attention that works, fails (1) or panics (2), as it is told.
struct Moody {
    inner: Arc<dyn AttentionKernels>,
    mood: Arc<AtomicU8>,
}

impl Part for Moody {
    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        self.inner.dispatch()
    }
}

impl AttentionKernels for Moody {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        self.inner.kv_layout(spec, block_size)
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slots: &Tensor,
    ) -> Result<()> {
        self.inner.write_kv(ctx, k, v, kv, slots)
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        match self.mood.load(Ordering::SeqCst) {
            0 => self.inner.forward(ctx, args),
            1 => Err(Error::DeviceLost { device: "moody".into(), reason: "as told".into() }),
            _ => panic!("as told"),
        }
    }
}

fn moody() -> (Kernels, Arc<AtomicU8>) {
    let kernels = reference::kernels();
    let mood = Arc::new(AtomicU8::new(0));
    let attention = Moody { inner: kernels.parts().attention.clone(), mood: mood.clone() };
    (kernels.with_attention(Arc::new(attention)).unwrap(), mood)
}

#[test]
fn a_failure_on_the_device_is_told_and_survived() {
    let wrap: [fn(&Kernels) -> Kernels; 3] =
        [Kernels::clone, testing::deferred, |inner| testing::deferred_with_depth(inner, 1)];
    for wrap in wrap {
        let (kernels, mood) = moody();
        let mut executor = start(wrap(&kernels), &request(16, 20));
        let job = Job { prompt: Dice(2).prompt(5), sampling: RowSampling::default(), num_new: 4 };
        let before = run(&mut executor, std::slice::from_ref(&job), &Schedule::plain());
        for told in [1, 2] {
            mood.store(told, Ordering::SeqCst);
            let first = executor.submit(batch(1)).unwrap();
            let second = executor.submit(StepBatch { step: next_step(), ..StepBatch::default() }).unwrap();
            let error = executor.collect(first).unwrap_err();
            let words = match &error {
                ExecutorError::Step { source, .. } => source.to_string(),
                ExecutorError::Panicked { message, .. } => message.clone(),
                other => panic!("{other:?}"),
            };
            assert!(words.contains("as told"), "{words}");
            assert!(matches!(executor.collect(second), Err(ExecutorError::Dropped { .. })));
            mood.store(0, Ordering::SeqCst);
            executor.reset().unwrap();
            assert_eq!(run(&mut executor, std::slice::from_ref(&job), &Schedule::plain()), before);
        }
    }
}

#[test]
fn dropping_an_executor_with_open_steps_ends_its_thread() {
    for kernels in [reference::kernels(), testing::deferred(&reference::kernels())] {
        let free = kernels.device().free_bytes();
        let mut executor = start(kernels.clone(), &request(16, 20));
        let _open = executor.submit(batch(1)).unwrap();
        drop(executor);
        assert_eq!(kernels.device().free_bytes(), free);
    }
}

#[test]
fn tickets_are_collected_in_order_and_no_more_than_two_are_open() {
    let mut executor = start(reference::kernels(), &request(16, 20));
    let empty = || StepBatch { step: next_step(), ..StepBatch::default() };
    let first = executor.submit(empty()).unwrap();
    let second = executor.submit(empty()).unwrap();
    assert!(matches!(
        executor.submit(empty()),
        Err(ExecutorError::TooManyInFlight { open: 2, max_in_flight: 2 })
    ));
    let expected = first.step;
    let error = executor.collect(second).unwrap_err();
    assert!(matches!(error, ExecutorError::OutOfOrder { expected: Some(step), .. } if step == expected));
    executor.collect(first).unwrap();
}

#[test]
fn masks_that_no_row_waits_for_are_refused() {
    let mut executor = start(reference::kernels(), &request(16, 20));
    let ticket = executor.submit(StepBatch { step: next_step(), ..StepBatch::default() }).unwrap();
    let error = executor.provide_masks(&ticket, Default::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("step {} got masks, None is the oldest that waits for some", ticket.step)
    );
    executor.collect(ticket).unwrap();
}

#[test]
fn a_model_that_does_not_load_is_an_error_and_no_hang() {
    let kernels = reference::kernels();
    let plan = plan(&kernels, &checkpoint(), &request(16, 20));
    let config = |load| WorkerConfig {
        kernels: kernels.clone(),
        plan: plan.clone(),
        kv_scales: Vec::new(),
        processors: Default::default(),
        probe: Arc::new(quire_executor::process_resident_bytes),
        load,
    };
    let missing = config(Box::new(|_| {
        Err(quire_models::Error::UnknownArchitecture { given: "Nope".into(), known: vec!["Llama".into()] })
    }));
    assert!(matches!(LocalExecutor::start(missing), Err(ExecutorError::Load(_))));
    let panics = config(Box::new(|_| panic!("no such weight")));
    let error = LocalExecutor::start(panics).err().unwrap();
    assert_eq!(error.to_string(), "the worker has stopped: no such weight");
}

#[test]
fn a_batch_is_plain_data() {
    let batch = batch(3);
    let text = serde_json::to_string(&batch).unwrap();
    assert_eq!(serde_json::from_str::<StepBatch>(&text).unwrap(), batch);
}
