//! The whole engine: what a request gets does not depend on what runs beside it, nor on how.
//!
//! On the CPU always; on a GPU in deterministic mode, where `QUIRE_TEST_CUDA` is 1.

#[path = "common/gpu.rs"]
mod gpu;

use std::path::{Path, PathBuf};

use quire_engine::{
    EngineBuilder, EngineOptions, Llm, Prompt, Request, RequestEvent, RequestOutput, RequestStream,
    SamplingParams,
};
use quire_kernels::{DType, Kernels, testing};
use quire_kernels_cpu::{CpuConfig, kernels};
use quire_models::ModelRegistry;
use quire_models::testing::TinyModel;
use quire_scheduler::testing::Rng;
use quire_scheduler::{
    PolicyRegistry, PreemptionMode, Rank, SchedulerPolicy, SequenceView, StepBuilder, standard_plan,
};

const NUM_REQUESTS: usize = 32;
const MAX_PROMPT_TOKENS: u32 = 600;
const MAX_OUTPUT_TOKENS: u32 = 128;
/// Room for the longest request and a bit: the others must give way.
const POOL_TOKENS: usize = 800;

/// One way to run the same requests.
#[derive(Clone, Copy, Debug)]
struct Way {
    block_size: usize,
    prefill_chunk: usize,
    overlapped: bool,
}

impl Way {
    fn all() -> impl Iterator<Item = Self> {
        [8, 16, 32].into_iter().flat_map(move |block_size| {
            [1, 7, 64].into_iter().flat_map(move |prefill_chunk| {
                [false, true].map(|overlapped| Self { block_size, prefill_chunk, overlapped })
            })
        })
    }

    fn load(self, model: &Path, kernels: &Kernels) -> Llm {
        let options = options(model)
            .block_size(self.block_size)
            .max_prefill_chunk(Some(self.prefill_chunk))
            .num_gpu_blocks_override(Some(POOL_TOKENS / self.block_size))
            .async_scheduling(self.overlapped);
        load(options, kernels.clone())
    }
}

#[test]
fn thirty_two_at_once_equal_their_lone_runs_on_every_way() {
    let folder = tempfile::tempdir().expect("a folder for the model");
    let mut tiny = TinyModel::llama();
    (tiny.dtype, tiny.max_position_embeddings) = (DType::Q8_0, 1024);
    let model = gguf(folder.path(), &tiny);

    let lone = kernels(CpuConfig { threads: Some(1), isa: None }).expect("a CPU is there");
    let plain = kernels(CpuConfig { threads: Some(2), isa: None }).expect("a CPU is there");
    let expected = lone_runs(&model, &lone);
    check_all_ways(&model, &plain, &expected);
    check_all_ways(&model, &testing::deferred(&plain), &expected);
}

/// All but the oldest give way when they have generated so many tokens, the first, second and third time.
struct GiveWay(PreemptionMode);

const GIVES_WAY_AFTER: [u32; 3] = [1, 10, 39];

impl SchedulerPolicy for GiveWay {
    fn name(&self) -> &str {
        "give-way"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        let is_due = |seq: &SequenceView<'_>| {
            let after = GIVES_WAY_AFTER.get(seq.num_preemptions() as usize);
            after.is_some_and(|after| seq.num_output_tokens() >= *after)
        };
        let due: Vec<_> = step.running().iter().filter(is_due).map(|seq| seq.id()).collect();
        // The oldest stays, and so does one whose blocks are still on their way.
        for seq in due {
            let _ = step.preempt(seq, self.0);
        }
        standard_plan(self, step);
    }
}

/// BR-11, BR-12 and their like, through the whole engine: by swap and by recompute, in chunks of 1, 7 and 64, in both
/// loops, with and without a prefix cache, on a device that works later, too. Every second request draws three outputs.
#[test]
fn forced_preemptions_do_not_change_what_comes_out() {
    let folder = tempfile::tempdir().expect("a folder for the model");
    let tiny = TinyModel { dtype: DType::F32, max_position_embeddings: 1024, ..TinyModel::llama() };
    let model = gguf(folder.path(), &tiny);
    let plain = kernels(CpuConfig { threads: Some(1), isa: None }).expect("a CPU is there");
    let expected = forked_lone_runs(&model, &plain);
    for kernels in [&plain, &testing::deferred(&plain)] {
        check_forced_preemptions(&model, kernels, &expected);
    }
}

/// The same on a model that somebody uses, in float32: `QUIRE_TEST_PREEMPTION_MODEL=PATH cargo test --release -p quire-llm --test
/// batching -- a_real_model` with a GGUF file or a folder. Takes minutes.
#[test]
fn a_real_model_is_not_changed_by_forced_preemptions_either() {
    let Some(model) = std::env::var_os("QUIRE_TEST_PREEMPTION_MODEL").map(PathBuf::from) else {
        eprintln!("skipped: QUIRE_TEST_PREEMPTION_MODEL names no model");
        return;
    };
    let plain = kernels(CpuConfig::default()).expect("a CPU is there");
    let expected = forked_lone_runs(&model, &plain);
    check_forced_preemptions(&model, &plain, &expected);
}

fn check_forced_preemptions(model: &Path, kernels: &Kernels, expected: &[Outputs]) {
    for way in Way::all().filter(|way| way.block_size == 16) {
        for (how, prefix_caching) in [
            (PreemptionMode::Swap, true),
            (PreemptionMode::Swap, false),
            (PreemptionMode::Recompute, true),
            (PreemptionMode::Recompute, false),
        ] {
            let options = forked_options(model)
                .max_prefill_chunk(Some(way.prefill_chunk))
                .async_scheduling(way.overlapped)
                .enable_prefix_caching(prefix_caching)
                .swap_space(0.5)
                .scheduling_policy("give-way".to_owned());
            let mut policies = PolicyRegistry::default();
            policies.register("give-way", move || GiveWay(how));
            let models = ModelRegistry::default();
            let llm =
                EngineBuilder::new(options, kernels.clone(), &models, &policies).llm().expect("it loads");
            let streams =
                forked_requests().into_iter().map(|request| llm.stream(request).expect("it is queued"));
            let streams: Vec<_> = streams.collect();
            let outputs: Vec<_> = streams.into_iter().map(delivered_once).collect();
            assert_eq!(outputs, expected, "{way:?}, {how:?}, prefix caching {prefix_caching}");
            let stats = llm.stats();
            assert!(stats.num_preemptions >= 12, "all but the oldest gave way: {stats:?}");
            let num_swaps = if how == PreemptionMode::Swap { stats.num_preemptions } else { 0 };
            assert_eq!(stats.num_swaps, num_swaps, "{way:?}, {how:?}");
            assert_eq!((stats.num_live_blocks, stats.num_swapped), (0, 0));
            assert_eq!(stats.num_free_swap_blocks, stats.num_swap_blocks, "all of the swap space comes back");
        }
    }
}

/// The token ids of a request's outputs.
type Outputs = Vec<Vec<u32>>;

/// A stream to its end. Each token of each output comes once and in order.
fn delivered_once(mut stream: RequestStream) -> Outputs {
    let mut delivered = Outputs::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            RequestEvent::Delta(delta) => {
                let index = delta.index as usize;
                delivered.resize(delivered.len().max(index + 1), Vec::new());
                delivered[index].extend(delta.token_ids);
            }
            RequestEvent::PromptLogprobs(_) => {}
            RequestEvent::SoFar(_) => panic!("pieces were asked for"),
            RequestEvent::Finished(output) => assert_eq!(delivered, token_ids(*output)),
            RequestEvent::Failed(error) => panic!("{error}"),
        }
    }
    delivered
}

fn token_ids(output: RequestOutput) -> Outputs {
    output.outputs.into_iter().map(|output| output.token_ids).collect()
}

/// Each by itself, one step after the other, without a prefix cache.
fn forked_lone_runs(model: &Path, kernels: &Kernels) -> Vec<Outputs> {
    let llm =
        load(forked_options(model).async_scheduling(false).enable_prefix_caching(false), kernels.clone());
    let run = |request| token_ids(llm.generate_each(vec![request]).remove(0).expect("the request runs"));
    forked_requests().into_iter().map(run).collect()
}

/// What is stored in a smaller type is computed in float32 all the same.
fn forked_options(model: &Path) -> EngineOptions {
    options(model).dtype(quire_engine::DTypeChoice::DType(DType::F32))
}

/// Prompts of more than one chunk, and short enough for chunks of one token.
fn forked_requests() -> Vec<Request> {
    let mut requests: Vec<_> = requests().into_iter().take(6).collect();
    for (i, request) in requests.iter_mut().enumerate() {
        if let Prompt::TokenIds(token_ids) = &mut request.prompt {
            token_ids.truncate(100 + i);
        }
        request.params.max_tokens = Some(45);
        request.params.n = if i % 2 == 1 { 3 } else { 1 };
    }
    requests
}

#[test]
fn on_a_gpu_too_in_deterministic_mode() {
    let Some(kernels) = gpu::open(|options| options.deterministic = true) else { return };
    let folder = tempfile::tempdir().expect("a folder for the models");
    for dtype in [DType::BF16, DType::Q8_0] {
        let llama =
            TinyModel { hidden_size: 256, head_dim: 64, intermediate_size: 512, ..TinyModel::llama() };
        let model =
            gguf(folder.path(), &TinyModel { dtype, max_position_embeddings: 1024, seed: 1, ..llama });
        let expected = lone_runs(&model, &kernels);
        check_all_ways(&model, &kernels, &expected);
    }
}

fn gguf(folder: &Path, tiny: &TinyModel) -> PathBuf {
    let model = folder.join("tiny.gguf");
    tiny.write_gguf(&model).expect("the model is written");
    model
}

fn check_all_ways(model: &Path, kernels: &Kernels, expected: &[(String, Vec<u32>)]) {
    let mut num_preemptions = 0;
    for way in Way::all() {
        let llm = way.load(model, kernels);
        assert_eq!(results(llm.generate_each(requests())), expected, "{way:?}");
        num_preemptions += llm.stats().num_preemptions;
    }
    assert!(num_preemptions > 0, "the pools are small enough to force preemptions");
}

fn lone_runs(model: &Path, kernels: &Kernels) -> Vec<(String, Vec<u32>)> {
    let options = options(model).async_scheduling(false).enable_prefix_caching(false);
    let llm = load(options, kernels.clone());
    requests().into_iter().flat_map(|request| results(llm.generate_each(vec![request]))).collect()
}

fn options(model: &Path) -> EngineOptions {
    EngineOptions::new(model)
        .max_model_len(quire_engine::MaxModelLen::Tokens(768))
        .max_num_seqs(16)
        .max_num_batched_tokens(256)
}

fn load(options: EngineOptions, kernels: Kernels) -> Llm {
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    EngineBuilder::new(options, kernels, &models, &policies).llm().expect("the tiny model loads")
}

/// Different prompts, lengths and ways of sampling; always the same ones.
fn requests() -> Vec<Request> {
    let mut rng = Rng::new(5);
    (0..NUM_REQUESTS).map(|i| request(i, &mut rng)).collect()
}

fn request(i: usize, rng: &mut Rng) -> Request {
    let len = 1 + rng.range(0..MAX_PROMPT_TOKENS);
    let prompt = (0..len).map(|_| 3 + rng.range(0..256)).collect();
    let mut params = SamplingParams::greedy(1 + u64::from(rng.range(0..MAX_OUTPUT_TOKENS)));
    params.ignore_eos = true;
    match i % 4 {
        1 => (params.temperature, params.seed, params.top_p) = (1.0, Some(i as i64), 0.9),
        2 => (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) = (1.5, 0.7, 1.2),
        3 => (params.temperature, params.seed, params.top_k, params.min_p) = (0.7, Some(3), 20, 0.05),
        _ => {}
    }
    Request::new(Prompt::TokenIds(prompt), params)
}

fn results(outputs: Vec<quire_engine::Result<RequestOutput>>) -> Vec<(String, Vec<u32>)> {
    let one = |output: quire_engine::Result<RequestOutput>| {
        let output = output.expect("the request runs").outputs.remove(0);
        (output.text, output.token_ids)
    };
    outputs.into_iter().map(one).collect()
}
