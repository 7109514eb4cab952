//! The memory plan: sums, refusals that name what works, and the report.

mod common;

use common::{checkpoint, plan, request, start};
use quire_executor::{
    ExecutorError, LocalExecutor, MaxModelLen, MemoryAdvice, MemoryError, MemoryPlan, MemoryRequest,
    ModelSizes, PoolSize, RowSampling,
};
use quire_kernels::reference;
use quire_models::{Architecture, Llama};

const BLOCK_BYTES: usize = 2 * 2 * 2 * 16 * 16 * 4; // layers, k and v, heads, tokens, head size, f32

fn try_plan(total_bytes: usize, request: &MemoryRequest) -> Result<MemoryPlan, MemoryError> {
    let checkpoint = checkpoint();
    let weight_bytes = checkpoint.check(&Llama.tensors(&checkpoint).unwrap()).unwrap().num_bytes as usize;
    let sizes = ModelSizes { architecture: &Llama, config: checkpoint.config(), weight_bytes };
    MemoryPlan::new(&reference::kernels_with_memory(total_bytes), sizes, request).map_err(|error| match error
    {
        ExecutorError::Memory(error) => error,
        other => panic!("{other}"),
    })
}

fn utilization(share: f64, max_model_len: MaxModelLen) -> MemoryRequest {
    MemoryRequest { pool: PoolSize::Utilization(share), max_model_len, ..request(16, 0) }
}

#[test]
fn what_is_left_of_the_budget_becomes_blocks() {
    let plan = try_plan(16 << 20, &utilization(0.9, MaxModelLen::Exactly(160))).unwrap();
    assert_eq!(plan.block_bytes, BLOCK_BYTES);
    let budget = (0.9 * f64::from(16 << 20)) as usize;
    assert!(plan.total_bytes() <= budget && plan.total_bytes() + BLOCK_BYTES > budget);
    assert_eq!(plan.concurrency(), plan.num_blocks as f64 / 10.0);
}

#[test]
fn the_default_of_a_host_is_room_for_all_rows() {
    let pool = PoolSize::Sequences { max_bytes: 4 << 30 };
    let plan = try_plan(1 << 30, &MemoryRequest { pool, ..request(16, 0) }).unwrap();
    assert_eq!((plan.num_blocks, plan.concurrency()), (80, 8.0));
    let pool = PoolSize::Sequences { max_bytes: 25 * BLOCK_BYTES };
    let plan = try_plan(1 << 30, &MemoryRequest { pool, ..request(16, 0) }).unwrap();
    assert_eq!(plan.num_blocks, 25);
}

#[test]
fn a_length_that_does_not_fit_is_refused_with_one_that_does() {
    let bytes = |num_blocks: usize| PoolSize::Bytes(num_blocks * BLOCK_BYTES + 1);
    let short = MemoryRequest { pool: bytes(9), ..request(16, 0) };
    let error = try_plan(1 << 30, &short).unwrap_err();
    assert_eq!(
        error,
        MemoryError::SequenceTooLong {
            max_model_len: 160,
            needed_blocks: 10,
            num_blocks: 9,
            block_size: 16,
            largest_len: 144,
            advice: MemoryAdvice::KvCacheMemoryAtLeast { num_bytes: 10 * BLOCK_BYTES },
        }
    );
    assert!(error.to_string().contains("the largest length that fits is 144"), "{error}");
    try_plan(1 << 30, &MemoryRequest { pool: PoolSize::Bytes(10 * BLOCK_BYTES), ..short }).unwrap();
    try_plan(1 << 30, &MemoryRequest { max_model_len: MaxModelLen::Exactly(144), ..short }).unwrap();
}

#[test]
fn an_automatic_length_and_an_override_fit_as_they_are() {
    let auto = MemoryRequest { pool: PoolSize::Bytes(9 * BLOCK_BYTES), ..request(16, 0) };
    let auto = MemoryRequest { max_model_len: MaxModelLen::FitUpTo(512), ..auto };
    let plan = try_plan(1 << 30, &auto).unwrap();
    assert_eq!((plan.num_blocks, plan.runner.limits.max_model_len), (9, 144));
    let plan = try_plan(1 << 30, &request(16, 3)).unwrap();
    assert_eq!((plan.num_blocks, plan.runner.limits.max_model_len), (3, 160));
}

#[test]
fn a_device_that_others_use_is_told_with_the_share_that_is_free() {
    let kernels = reference::kernels_with_memory(16 << 20);
    let of_others = kernels.device().allocate(8 << 20).unwrap();
    let checkpoint = checkpoint();
    let sizes = ModelSizes { architecture: &Llama, config: checkpoint.config(), weight_bytes: 100_000 };
    let plan = |share| MemoryPlan::new(&kernels, sizes, &utilization(share, MaxModelLen::Exactly(160)));
    let Err(ExecutorError::Memory(error)) = plan(0.9) else { panic!("half of the device is taken") };
    assert_eq!(
        error.to_string(),
        "gpu_memory_utilization 0.9 of 16.00 MiB is 14.40 MiB, and 8.00 MiB are free, others have the rest: \
         set gpu_memory_utilization to at most 0.50"
    );
    assert!(plan(0.5).is_ok(), "what was advised works");
    drop(of_others);
    assert!(plan(0.9).is_ok());
}

/// Whatever is refused works after the change that the refusal names.
#[test]
fn advice_that_is_followed_works() {
    let mut num_refused = 0;
    for total_bytes in (300_000..8_000_000).step_by(250_000) {
        for share in [0.2, 0.5, 1.0] {
            let mut request = utilization(share, MaxModelLen::Exactly(160));
            let Err(error) = try_plan(total_bytes, &request) else { continue };
            num_refused += 1;
            let (MemoryError::NoRoom { advice, .. } | MemoryError::SequenceTooLong { advice, .. }) = error
            else {
                panic!("{error}")
            };
            let mut total_bytes = total_bytes;
            // A change for which the share is too small as well is followed by that advice.
            for _ in 0..3 {
                let advice = match try_plan(total_bytes, &request) {
                    Ok(_) => break,
                    Err(MemoryError::NoRoom { advice, .. } | MemoryError::SequenceTooLong { advice, .. }) => {
                        advice
                    }
                    Err(error) => panic!("{error}"),
                };
                match advice {
                    MemoryAdvice::GpuMemoryUtilization { at_least_percent } => {
                        request.pool = PoolSize::Utilization(f64::from(at_least_percent) / 100.0);
                    }
                    MemoryAdvice::MaxNumBatchedTokens { at_most } => request.max_num_batched_tokens = at_most,
                    MemoryAdvice::MaxNumSeqs { at_most } => request.max_num_seqs = at_most,
                    MemoryAdvice::LargerDevice { num_bytes } => {
                        assert!(num_bytes > total_bytes);
                        total_bytes = num_bytes;
                        request.max_num_batched_tokens = 16;
                        request.max_num_seqs = 1;
                    }
                    other => panic!("{other}"),
                }
            }
            if let Err(still) = try_plan(total_bytes, &request) {
                panic!("{total_bytes} bytes, {share}: after {advice}: {still}");
            }
        }
    }
    assert!(num_refused > 10, "{num_refused}");
}

/// As where the tokens of a step are at least the rows, and both are far too many.
#[test]
fn rows_beyond_all_memory_are_advised_down_though_the_tokens_follow_them() {
    let many = MemoryRequest { max_num_seqs: 1 << 20, max_num_batched_tokens: 1 << 20, ..request(16, 20) };
    let many = MemoryRequest { pool: PoolSize::Sequences { max_bytes: 1 << 30 }, ..many };
    let error = try_plan(64 << 20, &many).unwrap_err();
    let MemoryError::NoRoom { advice: MemoryAdvice::MaxNumSeqs { at_most }, .. } = error else {
        panic!("{error}")
    };
    let followed = MemoryRequest { max_num_seqs: at_most, max_num_batched_tokens: at_most, ..many };
    assert!(try_plan(64 << 20, &followed).is_ok(), "{at_most} rows");
}

#[test]
fn a_pool_without_a_block_says_so_and_what_works() {
    let small = |num_bytes| MemoryRequest { pool: PoolSize::Bytes(num_bytes), ..request(16, 0) };
    let error = try_plan(1 << 30, &small(1)).unwrap_err();
    let expected = "a kv cache of 1 B holds no block of 8.00 KiB: set kv_cache_memory to at least";
    assert!(error.to_string().starts_with(expected), "{error}");
    let MemoryError::PoolTooSmall { advice: MemoryAdvice::KvCacheMemoryAtLeast { num_bytes }, .. } = error
    else {
        panic!("{error}")
    };
    assert!(try_plan(1 << 30, &small(num_bytes)).is_ok(), "{num_bytes} bytes");
}

#[test]
fn numbers_without_a_meaning_are_refused() {
    let check = |edit: &dyn Fn(&mut MemoryRequest), message: &str| {
        let mut request = request(16, 20);
        edit(&mut request);
        assert_eq!(try_plan(1 << 30, &request).unwrap_err().to_string(), message);
    };
    check(&|r| r.block_size = 0, "block_size is 0, expected from 1 to 2147483647");
    check(&|r| r.max_num_seqs = 0, "max_num_seqs is 0, expected from 1 to 2147483647");
    check(
        &|r| r.pool = PoolSize::Utilization(1.5),
        "gpu_memory_utilization is 1.5, expected more than 0 and at most 1",
    );
    check(&|r| r.pool = PoolSize::Blocks(0), "num_gpu_blocks_override is 0, expected at least 1");
    let error = try_plan(8 << 20, &request(16, 1 << 20)).unwrap_err();
    assert!(matches!(error, MemoryError::PoolTooLarge { advice: MemoryAdvice::NumBlocksAtMost { .. }, .. }));
}

#[test]
fn the_plan_is_what_the_device_gives_out() {
    let (checkpoint, request) = (checkpoint(), request(16, 40));
    let kernels = reference::kernels_with_memory(1 << 30);
    let planned = plan(&kernels, &checkpoint, &request);
    let free = kernels.device().free_bytes();
    let executor: LocalExecutor = start(kernels.clone(), &request);
    let taken = free - kernels.device().free_bytes();
    // The reference backend keeps its linear layers, as f64, beside the device's memory.
    let beside = planned.total_bytes() - taken;
    assert!(executor.report().weight_error() > 0.9, "{}", executor.report());
    assert!(beside < planned.weight_bytes && planned.weight_bytes - beside < 20_000, "{beside} bytes beside");

    let text = executor.report().to_string();
    assert!(text.contains("40 blocks of 16 tokens"), "{text}");
    assert!(text.contains("4.00 sequences of max_model_len=160 at once"), "{text}");
    drop(executor);
    assert_eq!(kernels.device().free_bytes(), free, "dropping gives everything back");
}

#[test]
fn no_step_takes_more_scratch_than_planned() {
    // The largest step: all tokens, all rows, every feature. The arena is exactly as large as the plan.
    let sampling = RowSampling {
        logprobs: Some(20),
        prompt_logprobs: Some(20),
        repetition_penalty: 1.1,
        temperature: 1.0,
        logit_bias: (0..200).map(|id| (id, 0.1)).collect(),
        ..RowSampling::default()
    };
    let mut executor = start(reference::kernels(), &request(16, 90));
    let jobs: Vec<_> = (0..8)
        .map(|i| common::Job { prompt: common::Dice(i).prompt(60), sampling: sampling.clone(), num_new: 5 })
        .collect();
    let schedule = common::Schedule { chunk: 8, ..common::Schedule::plain() };
    common::run(&mut executor, &jobs, &schedule);
    common::run(&mut executor, &jobs, &common::Schedule::plain());
}
