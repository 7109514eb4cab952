//! Models of every architecture through the engine, with the greedy tokens that `transformers` gives.

use std::path::{Path, PathBuf};

use quire_engine::{DTypeChoice, EngineBuilder, EngineOptions, Llm, MaxModelLen, SamplingParams};
use quire_kernels::{DType, Kernels, reference, testing};
use quire_models::ModelRegistry;
use quire_models::testing::{GoldenModel, TinyTokenizer};
use quire_scheduler::PolicyRegistry;
use serde_json::Value;
use tempfile::TempDir;

/// Tokens of a golden prompt with its continuation.
const NUM_TOKENS: usize = 112;

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny")
}

/// A model of the repository's goldens, with a tokenizer of no more tokens than it has.
pub(crate) fn golden(name: &str) -> (GoldenModel, TempDir) {
    let model = GoldenModel::read(&goldens().join(format!("{name}.json"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.write_folder(folder.path()).unwrap();
    let vocab_size = model.config["vocab_size"].as_u64().unwrap();
    let mut tokenizer = TinyTokenizer::json();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| id.as_u64().unwrap() < vocab_size);
    tokenizer["model"]["merges"] = Value::Array(vec![]);
    write(&folder.path().join("tokenizer.json"), &tokenizer);
    write(&folder.path().join("tokenizer_config.json"), &TinyTokenizer::config_json());
    (model, folder)
}

fn write(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_vec(value).unwrap()).unwrap();
}

fn load(folder: &Path, chunk: usize, overlapped: bool, kernels: Kernels) -> Llm {
    let options = EngineOptions::new(folder)
        .kv_cache_dtype(DTypeChoice::DType(DType::F32))
        .max_model_len(MaxModelLen::Tokens(NUM_TOKENS))
        .max_num_seqs(4)
        .max_num_batched_tokens(64)
        .block_size(8)
        .max_prefill_chunk(Some(chunk))
        .num_gpu_blocks_override(Some(64))
        .async_scheduling(overlapped);
    EngineBuilder::new(options, kernels, &ModelRegistry::default(), &PolicyRegistry::default()).llm().unwrap()
}

/// The golden continuation, alone and beside others, after any chunking, and after a hit in the prefix cache.
fn check(name: &str) {
    let (model, folder) = golden(name);
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(model.greedy.len() as u64) };
    let backends: [fn() -> Kernels; 2] = [reference::kernels, || testing::deferred(&reference::kernels())];
    for (chunk, overlapped, backend) in
        [(64, false, backends[0]), (7, true, backends[0]), (33, true, backends[1])]
    {
        let llm = load(folder.path(), chunk, overlapped, backend());
        let prompts = [model.prompt.clone(), model.prompt[..40].to_vec(), model.prompt[60..].to_vec()];
        let outputs = llm.generate(prompts, &params).unwrap();
        assert_eq!(outputs[0].outputs[0].token_ids, model.greedy, "{name} in chunks of {chunk}");
        let again = llm.generate([model.prompt.clone()], &params).unwrap().remove(0);
        assert!(again.num_cached_tokens >= 88, "{name}: {} cached", again.num_cached_tokens);
        assert_eq!(again.outputs[0].token_ids, model.greedy, "{name} from the prefix cache");
        crate::rig::check_idle(&llm);
    }
}

#[test]
fn every_architecture_writes_what_transformers_writes() {
    for file in std::fs::read_dir(goldens()).unwrap() {
        let name = file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        let (model, folder) = golden(&name);
        let llm = load(folder.path(), 33, true, reference::kernels());
        let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(model.greedy.len() as u64) };
        let prompts = [model.prompt.clone(), model.prompt[50..].to_vec()];
        let outputs = llm.generate(prompts, &params).unwrap();
        assert_eq!(outputs[0].outputs[0].token_ids, model.greedy, "{name}");
    }
}

#[test]
fn br_50_layers_with_a_window_stand_beside_layers_without() {
    ["qwen2", "gemma2", "gemma3"].into_iter().for_each(check);
}

#[test]
fn br_50_all_layers_have_a_window_or_none_of_them() {
    ["mistral", "qwen2-full"].into_iter().for_each(check);
}
