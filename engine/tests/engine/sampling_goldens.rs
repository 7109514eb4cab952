//! Parameters, log-probabilities and beams, against `transformers` (`tests/tools/sampling_goldens.py`).

use std::path::PathBuf;

use quire_engine::{
    BeamSearchParams, DTypeChoice, EngineBuilder, EngineOptions, Llm, MaxLogprobs, MaxModelLen,
    SamplingParams, TokenLogprobs,
};
use quire_executor::LogprobsMode;
use quire_kernels::{DType, reference};
use quire_models::ModelRegistry;
use quire_scheduler::PolicyRegistry;
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::goldens::golden;

/// What float32 and five digits leave.
const TOLERANCE: f64 = 2e-4;

#[derive(Deserialize)]
struct Goldens {
    prompt: Vec<u32>,
    greedy: Vec<GreedyCase>,
    prompt_logprobs: Vec<Entry>,
    filtered: Vec<FilterCase>,
    beams: Vec<BeamCase>,
}

#[derive(Deserialize)]
struct GreedyCase {
    params: Map<String, Value>,
    tokens: Vec<u32>,
    logprobs: Vec<Entry>,
}

/// A token, its log-probability, its rank, and the best ones.
#[derive(Deserialize)]
struct Entry(u32, f64, u32, Vec<(u32, f64)>);

#[derive(Deserialize)]
struct FilterCase {
    params: Map<String, Value>,
    logprobs: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct BeamCase {
    beam_width: u32,
    max_tokens: u64,
    texts: Vec<Vec<u32>>,
    logprobs: Vec<f64>,
}

fn goldens() -> Goldens {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/sampling.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn load(mode: LogprobsMode) -> (Llm, TempDir) {
    let (_, folder) = golden("llama");
    let options = EngineOptions::new(folder.path())
        .kv_cache_dtype(DTypeChoice::DType(DType::F32))
        .max_model_len(MaxModelLen::Tokens(64))
        .max_num_seqs(8)
        .max_num_batched_tokens(64)
        .block_size(8)
        .num_gpu_blocks_override(Some(64))
        .max_logprobs(MaxLogprobs::Vocabulary)
        .logprobs_mode(mode);
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    (EngineBuilder::new(options, reference::kernels(), &models, &policies).llm().unwrap(), folder)
}

#[track_caller]
fn assert_close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < TOLERANCE, "{actual} instead of {expected}");
}

#[track_caller]
fn assert_told(actual: &TokenLogprobs, Entry(token, logprob, rank, top): &Entry) {
    assert_eq!((actual.token.token_id, actual.rank), (*token, *rank));
    assert_close(actual.token.logprob.into(), *logprob);
    let told: Vec<_> = actual.top.iter().map(|one| one.token_id).collect();
    assert_eq!(told, top.iter().map(|(id, _)| *id).collect::<Vec<_>>());
    actual.top.iter().zip(top).for_each(|(one, (_, logprob))| assert_close(one.logprob.into(), *logprob));
}

#[test]
fn greedy_texts_with_penalties_bias_bad_words_and_min_tokens_are_those_of_transformers() {
    let (llm, _folder) = load(LogprobsMode::RawLogprobs);
    let goldens = goldens();
    assert_eq!(goldens.greedy.len(), 9);
    for case in &goldens.greedy {
        let plain = SamplingParams { logprobs: Some(3), ignore_eos: true, ..SamplingParams::greedy(16) };
        let params = plain.with_json(&case.params).unwrap();
        let output = llm.generate([goldens.prompt.clone()], &params).unwrap().remove(0).outputs.remove(0);
        assert_eq!(output.token_ids, case.tokens, "{:?}", case.params);
        let told = output.logprobs.unwrap();
        told.iter().zip(&case.logprobs).for_each(|(told, expected)| assert_told(told, expected));
        let sum: f64 = case.logprobs.iter().map(|entry| entry.1).sum();
        assert!((output.cumulative_logprob.unwrap() - sum).abs() < 16.0 * TOLERANCE);
    }
}

#[test]
fn a_prompt_is_told_as_by_transformers() {
    let (llm, _folder) = load(LogprobsMode::RawLogprobs);
    let goldens = goldens();
    let params = SamplingParams { prompt_logprobs: Some(2), ..SamplingParams::greedy(1) };
    let output = llm.generate([goldens.prompt.clone()], &params).unwrap().remove(0);
    let told = output.prompt_logprobs.unwrap();
    assert!(told[0].is_none() && told.len() == goldens.prompt.len());
    let told = told[1..].iter().flatten();
    told.zip(&goldens.prompt_logprobs).for_each(|(told, expected)| assert_told(told, expected));
}

#[test]
fn what_is_drawn_from_is_what_transformers_draws_from() {
    let (llm, _folder) = load(LogprobsMode::ProcessedLogprobs);
    let goldens = goldens();
    for case in &goldens.filtered {
        let plain = SamplingParams { logprobs: Some(-1), max_tokens: Some(1), ..SamplingParams::default() };
        let params = plain.with_json(&case.params).unwrap();
        let output = llm.generate([goldens.prompt.clone()], &params).unwrap().remove(0).outputs.remove(0);
        let told = output.logprobs.unwrap().remove(0);
        assert_eq!(told.top.len(), case.logprobs.len(), "the whole vocabulary");
        for one in &told.top {
            match case.logprobs[one.token_id as usize] {
                Some(expected) => assert_close(one.logprob.into(), expected),
                None => assert_eq!(one.logprob, f32::NEG_INFINITY, "{:?}: {one:?}", case.params),
            }
        }
        let written = serde_json::to_string(&told).unwrap();
        assert_eq!(written.contains("-9999.0"), case.logprobs.contains(&None));
        assert!(case.logprobs[told.token.token_id as usize].is_some(), "what was drawn could be");
    }
}

#[test]
fn beams_are_those_of_transformers() {
    let (llm, _folder) = load(LogprobsMode::RawLogprobs);
    let goldens = goldens();
    for (i, case) in goldens.beams.iter().enumerate() {
        let num_prompt = if i < goldens.beams.len() / 2 { 24 } else { 11 };
        let params = BeamSearchParams {
            ignore_eos: true,
            length_penalty: 0.0,
            ..BeamSearchParams::new(case.beam_width, case.max_tokens)
        };
        let output = llm.beam_search([goldens.prompt[..num_prompt].to_vec()], &params).unwrap().remove(0);
        let texts: Vec<_> = output.outputs.iter().map(|output| output.token_ids.clone()).collect();
        assert_eq!(texts, case.texts);
        for (output, logprob) in output.outputs.iter().zip(&case.logprobs) {
            assert!((output.cumulative_logprob.unwrap() - logprob).abs() < 8.0 * TOLERANCE);
        }
    }
}
