//! Logits processors under the engine: what a request gets does not depend on what runs beside it.

use std::path::Path;

use quire_engine::{
    EngineBuilder, Error, Llm, LogitsProcessorCall, Request, RequestEvent, RequestOutput, SamplingParams,
};
use quire_executor::{LogitsProcessor, LogitsProcessors, RowLogits};
use quire_kernels::{Kernels, reference, testing};
use quire_models::ModelRegistry;
use quire_models::testing::TinyModel;
use quire_scheduler::PolicyRegistry;
use serde_json::json;

use crate::model::{options, prompt};
use crate::rig::{Random, check_idle};

/// Favours tokens by a number made of all that came before, and by a seed: one wrong token, and all is another.
struct History;

impl LogitsProcessor for History {
    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        for row in rows {
            let mut state = row.args.as_u64().unwrap_or(1);
            row.token_ids.iter().for_each(|&id| state = state.wrapping_mul(31).wrapping_add(u64::from(id)));
            let mut random = Random(state);
            row.logits.iter_mut().for_each(|logit| *logit += random.below(1000) as f32 / 500.0);
        }
    }
}

/// Allows tokens of an even number at even places of the output, of an odd one at odd places.
struct Parity;

impl LogitsProcessor for Parity {
    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        for row in rows {
            let forbidden = (row.output().len() + 1) % 2;
            row.logits.iter_mut().skip(forbidden).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        }
    }
}

/// A bug of a user's.
struct Broken;

impl LogitsProcessor for Broken {
    fn process(&mut self, rows: &mut [RowLogits<'_>]) {
        let beyond = rows[0].logits.len();
        rows[0].logits[beyond] = 0.0;
    }
}

fn load(folder: &Path, num_blocks: usize, overlapped: bool, kernels: Kernels) -> Llm {
    let options =
        options(folder).block_size(8).num_gpu_blocks_override(Some(num_blocks)).async_scheduling(overlapped);
    let processors = LogitsProcessors::new()
        .with("history", || History)
        .with("parity", || Parity)
        .with("broken", || Broken);
    EngineBuilder::new(options, kernels, &ModelRegistry::default(), &PolicyRegistry::default())
        .logits_processors(processors)
        .llm()
        .unwrap()
}

fn requests() -> Vec<(Vec<u32>, SamplingParams)> {
    let mut random = Random(21);
    let history = LogitsProcessorCall::new("history", 5);
    let parity = LogitsProcessorCall::new("parity", ());
    let asked = [vec![], vec![history.clone()], vec![parity.clone()], vec![parity, history]];
    let request = |i: usize| {
        let mut params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(12) };
        params.logits_processors = asked[i % asked.len()].clone();
        if i >= asked.len() {
            (params.temperature, params.seed, params.n) = (1.0, Some(i as i64), 3);
            (params.logprobs, params.repetition_penalty) = (Some(2), 1.2);
        }
        let len = 5 + random.below(20);
        (prompt(&mut random, len), params)
    };
    (0..2 * asked.len()).map(request).collect()
}

fn answers(outputs: Vec<RequestOutput>) -> Vec<Vec<(Vec<u32>, String)>> {
    let of = |output: RequestOutput| {
        output.outputs.into_iter().map(|one| (one.token_ids, format!("{:?}", one.logprobs))).collect()
    };
    outputs.into_iter().map(of).collect()
}

#[test]
fn outputs_with_processors_equal_their_lone_runs() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    let requests = requests();
    let lone = load(folder.path(), 256, false, reference::kernels());
    let run = |request: &(Vec<u32>, SamplingParams)| {
        answers(lone.generate_with([request.clone()]).unwrap()).remove(0)
    };
    let expected: Vec<_> = requests.iter().map(run).collect();
    for ((_, params), outputs) in requests.iter().zip(&expected) {
        let is_bound = params.logits_processors.iter().any(|call| call.name == "parity");
        let alternates = |ids: &[u32]| ids.iter().enumerate().all(|(i, id)| *id as usize % 2 == i % 2);
        assert_eq!(outputs.iter().all(|(ids, _)| alternates(ids)), is_bound, "{params:?}");
    }
    let mut num_preemptions = 0;
    for overlapped in [false, true] {
        for kernels in [reference::kernels(), testing::deferred(&reference::kernels())] {
            let llm = load(folder.path(), 17, overlapped, kernels);
            assert_eq!(
                answers(llm.generate_with(requests.clone()).unwrap()),
                expected,
                "overlapped {overlapped}"
            );
            num_preemptions += llm.stats().num_preemptions;
            check_idle(&llm);
        }
    }
    assert!(num_preemptions > 0, "the pools are small enough");
}

#[test]
fn br_42_a_processor_that_panics_ends_its_requests_alone() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    for overlapped in [false, true] {
        let llm = load(folder.path(), 64, overlapped, reference::kernels());
        let good = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(6) };
        let expected = answers(llm.generate([vec![9, 8, 7]], &good).unwrap());
        let bad = SamplingParams {
            logits_processors: vec![LogitsProcessorCall::new("broken", ())],
            ..good.clone()
        };
        let streams = [&good, &bad, &good]
            .map(|params| llm.stream(Request::new(vec![9, 8, 7], params.clone())).unwrap());
        let ends = streams.map(|mut stream| std::iter::from_fn(|| stream.blocking_next()).last().unwrap());
        for (i, end) in ends.into_iter().enumerate() {
            match (i, end) {
                (1, RequestEvent::Failed(error)) => {
                    let cause = std::error::Error::source(&error).unwrap().to_string();
                    assert!(cause.contains("logits processors: one panicked"), "{cause}");
                }
                (0 | 2, RequestEvent::Finished(output)) => {
                    assert_eq!(answers(vec![*output]), expected);
                }
                other => panic!("{other:?}"),
            }
        }
        check_idle(&llm);
    }
}

#[test]
fn an_unknown_processor_is_refused_before_anything_is_queued() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    let llm = load(folder.path(), 64, true, reference::kernels());
    let given = json!({"logits_processors": ["histories"]});
    let params = SamplingParams::default().with_json(given.as_object().unwrap()).unwrap();
    let error = llm.stream(Request::new(vec![1], params)).unwrap_err();
    assert!(matches!(&error, Error::Param(_)), "{error:?}");
    let expected = "logits_processors is histories: expected one of history, parity, broken";
    assert!(error.to_string().ends_with(expected), "{error}");
}
