//! The engine on a tiny model: the results of a request do not depend on what runs beside it, nor on how.

use std::path::Path;

use quire_engine::{
    DTypeChoice, EngineBuilder, EngineOptions, FinishReason, Llm, Request, RequestOutput, SamplingParams,
};
use quire_kernels::{DType, Kernels, reference, testing};
use quire_models::ModelRegistry;
use quire_models::testing::TinyModel;
use quire_scheduler::PolicyRegistry;
use tempfile::TempDir;

use crate::rig::Random;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    folder
}

pub(crate) fn options(folder: &Path) -> EngineOptions {
    EngineOptions::new(folder)
        .kv_cache_dtype(DTypeChoice::DType(DType::F32))
        .max_num_seqs(8)
        .max_num_batched_tokens(64)
        .num_gpu_blocks_override(Some(256))
        .seed(5)
}

pub(crate) fn load(options: EngineOptions, kernels: Kernels) -> Llm {
    EngineBuilder::new(options, kernels, &ModelRegistry::default(), &PolicyRegistry::default()).llm().unwrap()
}

pub(crate) fn prompt(random: &mut Random, len: usize) -> Vec<u32> {
    (0..len).map(|_| 3 + random.below(256) as u32).collect()
}

/// Different prompts, lengths, lengths of output, and ways of sampling.
fn requests(num: usize, max_prompt: usize, max_output: usize) -> Vec<(Vec<u32>, SamplingParams)> {
    let mut random = Random(11);
    (0..num)
        .map(|i| {
            let len = 1 + random.below(max_prompt);
            let mut params = SamplingParams::greedy(1 + random.below(max_output) as u64);
            params.ignore_eos = true;
            if i % 3 == 1 {
                (params.temperature, params.seed, params.top_p) = (1.0, Some(i as i64), 0.9);
            }
            if i % 3 == 2 {
                (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) =
                    (1.5, 0.7, 1.2);
            }
            (prompt(&mut random, len), params)
        })
        .collect()
}

fn texts(outputs: Vec<RequestOutput>) -> Vec<(String, Vec<u32>)> {
    outputs
        .into_iter()
        .map(|mut output| output.outputs.remove(0))
        .map(|one| (one.text, one.token_ids))
        .collect()
}

fn lone_runs(folder: &Path, requests: &[(Vec<u32>, SamplingParams)]) -> Vec<(String, Vec<u32>)> {
    let llm = load(options(folder).async_scheduling(false), reference::kernels());
    let one =
        |request: &(Vec<u32>, SamplingParams)| texts(llm.generate_with([request.clone()]).unwrap()).remove(0);
    requests.iter().map(one).collect()
}

#[test]
fn many_at_once_equal_their_lone_runs() {
    let folder = folder();
    let requests = requests(32, 120, 24);
    let expected = lone_runs(folder.path(), &requests);
    let mut num_preemptions = 0;
    for (i, (block_size, chunk)) in [(8, Some(1)), (16, Some(7)), (32, Some(64))].into_iter().enumerate() {
        for overlapped in [false, true] {
            for deferred in [false, true] {
                // Room for the longest request and a half.
                let num_blocks = 216_usize.div_ceil(block_size);
                let options = options(folder.path())
                    .block_size(block_size)
                    .max_prefill_chunk(chunk)
                    .num_gpu_blocks_override(Some(num_blocks))
                    .async_scheduling(overlapped);
                let kernels =
                    if deferred { testing::deferred(&reference::kernels()) } else { reference::kernels() };
                let llm = load(options, kernels);
                let outputs = texts(llm.generate_with(requests.clone()).unwrap());
                assert_eq!(outputs, expected, "case {i}, overlapped {overlapped}, deferred {deferred}");
                num_preemptions += llm.stats().num_preemptions;
                crate::rig::check_idle(&llm);
            }
        }
    }
    assert!(num_preemptions > 0, "the pools are small enough");
}

#[test]
fn br_11_penalties_survive_preemptions() {
    let folder = folder();
    let params = SamplingParams {
        presence_penalty: 1.5,
        frequency_penalty: 0.7,
        repetition_penalty: 1.2,
        ignore_eos: true,
        ..SamplingParams::greedy(40)
    };
    let mut random = Random(3);
    let requests: Vec<_> = (0..4).map(|_| (prompt(&mut random, 20), params.clone())).collect();
    let expected = lone_runs(folder.path(), &requests);
    for overlapped in [false, true] {
        let options = options(folder.path())
            .block_size(8)
            .num_gpu_blocks_override(Some(17))
            .async_scheduling(overlapped);
        let llm = load(options, reference::kernels());
        let outputs = llm.generate_with(requests.clone()).unwrap();
        assert!(outputs.iter().any(|output| output.metrics.num_preemptions > 0));
        assert_eq!(texts(outputs), expected);
    }
}

/// Whatever a parameter that is allowed does to logits, some token is the best one.
#[test]
fn extreme_parameters_leave_finite_logits() {
    let folder = folder();
    let llm = load(options(folder.path()), reference::kernels());
    let prompt = prompt(&mut Random(4), 20);
    let base = SamplingParams { ignore_eos: true, seed: Some(1), ..SamplingParams::greedy(3) };
    let mut requests = Vec::new();
    for temperature in [0.0, 0.00002, 1.0, 2.0] {
        // All tokens, and those alone that the penalties change.
        for allowed_token_ids in [None, Some(prompt.clone())] {
            for repetition_penalty in [5e-324, 1e-45, 1e-38, 4e-38, 1e-30, 1.0, 3e38, f64::MAX] {
                for sign in [-1.0, 1.0] {
                    let logit_bias = prompt.iter().map(|&id| (id, sign * 1e300)).collect();
                    let params = SamplingParams {
                        temperature,
                        repetition_penalty,
                        logit_bias,
                        allowed_token_ids: allowed_token_ids.clone(),
                        presence_penalty: 2.0 * sign,
                        frequency_penalty: 2.0 * sign,
                        logprobs: Some(2),
                        ..base.clone()
                    };
                    requests.push((prompt.clone(), params));
                }
            }
        }
    }
    for output in llm.generate_with(requests).unwrap() {
        let one = &output.outputs[0];
        assert_eq!((one.finish_reason, one.token_ids.len()), (FinishReason::Length, 3));
        assert!(one.cumulative_logprob.is_some_and(f64::is_finite), "{one:?}");
    }
}

#[test]
fn br_17_a_cache_hit_gives_the_same_text() {
    let folder = folder();
    let llm = load(options(folder.path()).block_size(16), reference::kernels());
    let mut random = Random(9);
    for len in [15, 16, 17, 32, 33] {
        let prompt = prompt(&mut random, len);
        let longer = [prompt.clone(), vec![7; 20]].concat();
        let run = |prompt: &Vec<u32>| {
            llm.generate([prompt.clone()], &SamplingParams::greedy(12)).unwrap().remove(0)
        };
        let first = run(&prompt);
        assert_eq!(first.num_cached_tokens, 0);
        let again = run(&prompt);
        assert_eq!(again.num_cached_tokens as usize, (len - 1) / 16 * 16);
        run(&longer);
        let after_longer = run(&prompt);
        assert_eq!(first.outputs, again.outputs);
        assert_eq!(first.outputs, after_longer.outputs);
    }
}

#[test]
fn br_32_small_temperatures_equal_greedy() {
    let folder = folder();
    let llm = load(options(folder.path()), reference::kernels());
    let run = |temperature, top_p| {
        let params = SamplingParams { temperature, top_p, logprobs: Some(3), ..SamplingParams::greedy(16) };
        llm.generate(["Once upon a time"], &params).unwrap().remove(0).outputs.remove(0)
    };
    let greedy = run(0.0, 1.0);
    for (temperature, top_p) in [(1e-7, 1.0), (1e-4, 1e-4), (0.009, 1e-4), (0.0, 1e-4)] {
        let output = run(temperature, top_p);
        assert_eq!(output.token_ids, greedy.token_ids, "temperature {temperature}, top_p {top_p}");
        assert!(output.logprobs.unwrap().iter().all(|one| one.token.logprob.is_finite()));
    }
}

#[test]
fn br_33_a_row_does_not_depend_on_its_neighbours() {
    let folder = folder();
    let llm = load(options(folder.path()), reference::kernels());
    let sampled = SamplingParams { temperature: 1.0, max_tokens: Some(12), ..SamplingParams::default() };
    let params = [
        SamplingParams::greedy(12),
        SamplingParams { seed: Some(42), ..sampled.clone() },
        SamplingParams { top_p: 0.9, ..sampled.clone() },
        SamplingParams { top_k: 1, ..sampled },
    ];
    let batch: Vec<_> = params.iter().enumerate().map(|(i, p)| (vec![40 + i as u32; 9], p.clone())).collect();
    let alone: Vec<_> =
        batch.iter().map(|one| texts(llm.generate_with([one.clone()]).unwrap()).remove(0)).collect();
    for _ in 0..20 {
        let outputs = texts(llm.generate_with(batch.clone()).unwrap());
        for row in [0, 1, 3] {
            assert_eq!(outputs[row], alone[row], "row {row}");
        }
    }
}

#[test]
fn br_43_prompts_of_different_lengths_do_not_mix() {
    let folder = folder();
    let llm = load(options(folder.path()), testing::deferred(&reference::kernels()));
    let mut random = Random(21);
    let requests: Vec<_> = [1, 2, 17, 40, 64, 100, 200, 300]
        .map(|len| (prompt(&mut random, len), SamplingParams::greedy(10)))
        .into();
    let expected = lone_runs(folder.path(), &requests);
    let streams: Vec<_> = requests
        .iter()
        .map(|(p, params)| llm.stream(Request::new(p.clone(), params.clone())).unwrap())
        .collect();
    for (stream, expected) in streams.into_iter().zip(expected) {
        let output = crate::rig::drain(stream).1;
        assert_eq!(texts(vec![output]), [expected]);
    }
}

#[test]
fn br_02_an_automatic_length_fits_and_holds() {
    let folder = folder();
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    let plan = |options| EngineBuilder::new(options, reference::kernels(), &models, &policies).plan();
    let small = options(folder.path())
        .num_gpu_blocks_override(None)
        .kv_cache_memory(Some(quire_engine::Bytes(40_000)));
    let error = plan(small.clone()).err().unwrap().to_string();
    assert!(error.contains("max_model_len 512") && error.contains("largest length that fits"), "{error}");
    let fitted = plan(small.max_model_len(quire_engine::MaxModelLen::Auto)).unwrap();
    let max_model_len = fitted.config().max_model_len();
    assert_eq!(max_model_len, fitted.memory().num_pool_tokens());
    let llm = Llm::start(fitted.load().unwrap()).unwrap();
    assert_eq!(llm.model().max_model_len, max_model_len);
    assert!(llm.generate([vec![9_u32; max_model_len]], &SamplingParams::greedy(1)).is_err());
    let output =
        llm.generate([vec![9_u32; max_model_len - 1]], &SamplingParams::greedy(9)).unwrap().remove(0);
    assert_eq!(output.outputs[0].finish_reason, FinishReason::Length);
}

/// Output `i` depends on the seed and on `i`: not on how many there are, nor on what gives way to what.
#[test]
fn br_22_two_outputs_are_the_first_two_of_four_however_they_run() {
    let folder = folder();
    let params = |i: usize, n| SamplingParams {
        n,
        seed: Some(i as i64),
        frequency_penalty: 0.4,
        ignore_eos: true,
        max_tokens: Some(20),
        logprobs: Some(1),
        ..SamplingParams::default()
    };
    let mut random = Random(17);
    let prompts: Vec<_> = [1, 8, 15, 16, 17, 40].map(|len| prompt(&mut random, len)).into();
    let lone = load(
        options(folder.path()).async_scheduling(false).enable_prefix_caching(false),
        reference::kernels(),
    );
    let run = |llm: &Llm, n| {
        let requests = prompts.iter().enumerate().map(|(i, prompt)| (prompt.clone(), params(i, n)));
        let outputs = llm.generate_with(requests).unwrap();
        outputs.into_iter().map(|output| output.outputs).collect::<Vec<_>>()
    };
    let four = run(&lone, 4);
    assert!(four.iter().all(|outputs| outputs[0].token_ids != outputs[1].token_ids));
    let mut num_preemptions = 0;
    for (n, num_blocks, chunk, overlapped) in [
        (1, 256, None, true),
        (2, 9, Some(7), true),
        (2, 256, None, false),
        (4, 12, Some(1), true),
        (4, 9, None, false),
    ] {
        for prefix_caching in [false, true] {
            for kernels in [reference::kernels(), testing::deferred(&reference::kernels())] {
                let options = options(folder.path())
                    .block_size(8)
                    .max_prefill_chunk(chunk)
                    .enable_prefix_caching(prefix_caching)
                    .num_gpu_blocks_override(Some(num_blocks))
                    .async_scheduling(overlapped);
                let options = match num_blocks {
                    256 => options,
                    _ => options.max_model_len(quire_engine::MaxModelLen::Tokens(64)),
                };
                let llm = load(options, kernels);
                for (outputs, four) in run(&llm, n).iter().zip(&four) {
                    assert_eq!(outputs[..], four[..n as usize], "n = {n}, {num_blocks} blocks");
                }
                num_preemptions += llm.stats().num_preemptions;
                crate::rig::check_idle(&llm);
            }
        }
    }
    assert!(num_preemptions > 0, "some pools are small enough");
}
