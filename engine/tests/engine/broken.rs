//! Broken models: each is refused by name before the device is given anything (BR-47 to BR-51 and their neighbours).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_engine::{EngineBuilder, EngineOptions};
use quire_kernels::{DType, reference};
use quire_models::ModelRegistry;
use quire_models::testing::{GgufWriter, MetadataValue, TinyModel, write_safetensors};
use quire_scheduler::PolicyRegistry;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What starting the model at `path` is refused with, in words. Memory is asked about for the first time when the worker
/// starts, which then reserves it.
fn refusal(path: &Path) -> String {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let probe = Arc::new(move || Some(counter.fetch_add(1, Ordering::Relaxed)));
    let options = EngineOptions::new(path).num_gpu_blocks_override(Some(16)).max_num_seqs(1);
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    let builder = EngineBuilder::new(options, reference::kernels(), &models, &policies);
    let error = match builder.memory_probe(probe).llm() {
        Ok(_) => return "nothing: it runs".to_owned(),
        Err(error) => error,
    };
    assert_eq!(asked.load(Ordering::Relaxed), 0, "the worker was started: {error}");
    causes(&error)
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Breaks a sound folder in one way.
type Break = Box<dyn Fn(&Path)>;

fn write(file: &'static str, bytes: impl Into<Vec<u8>>) -> Break {
    let bytes = bytes.into();
    Box::new(move |folder| fs::write(folder.join(file), &bytes).unwrap())
}

fn remove(file: &'static str) -> Break {
    Box::new(move |folder| fs::remove_file(folder.join(file)).unwrap())
}

fn edit(file: &'static str, change: fn(&mut Value)) -> Break {
    Box::new(move |folder| {
        let path = folder.join(file);
        let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    })
}

/// A file of weights without others beside it.
fn only(file: &'static str) -> Break {
    Box::new(move |folder| fs::rename(folder.join(WEIGHTS), folder.join(file)).unwrap())
}

fn bytes(change: fn(Vec<u8>) -> Vec<u8>) -> Break {
    Box::new(move |folder| {
        let path = folder.join(WEIGHTS);
        fs::write(&path, change(fs::read(&path).unwrap())).unwrap();
    })
}

/// A folder in two shards.
fn shards(change: fn(&Path)) -> Break {
    Box::new(move |folder| {
        fs::remove_file(folder.join(WEIGHTS)).unwrap();
        TinyModel { num_shards: 2, ..TinyModel::llama() }.write_folder(folder).unwrap();
        change(folder);
    })
}

fn one_tensor(dtype: DType, bytes_of_one: usize) -> Break {
    Box::new(move |folder| {
        let tensor = ("model.norm.weight".to_owned(), dtype, vec![64], vec![0xff; 64 * bytes_of_one]);
        write_safetensors(&folder.join(WEIGHTS), &[tensor]).unwrap();
    })
}

const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";
const SHARD: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";

/// Ways to break a folder, and a part of what is said then.
fn folders() -> Vec<(Break, &'static str)> {
    [settings(), weights(), texts()].into_iter().flatten().collect()
}

fn settings() -> Vec<(Break, &'static str)> {
    vec![
        (remove(CONFIG), "config.json"),
        (write(CONFIG, "{\"hidden_size\": 64,"), "config.json"),
        (write(CONFIG, "[]"), "expected a JSON object"),
        (write(CONFIG, POINTER), "is a pointer of git lfs"),
        (edit(CONFIG, |config| config["hidden_size"] = json!(0)), "hidden_size: expected 1 to"),
        (
            edit(CONFIG, |config| config["num_attention_heads"] = json!("4")),
            "num_attention_heads: expected a whole",
        ),
        (edit(CONFIG, |config| config["num_key_value_heads"] = json!(3)), "expected a multiple of"),
        (edit(CONFIG, |config| config["head_dim"] = json!(15)), "expected an even number"),
        (edit(CONFIG, |config| config["eos_token_id"] = json!(9999)), "9999 is not in the vocabulary"),
        (edit(CONFIG, |config| config["max_position_embeddings"] = json!(1)), "at least 2"),
        (
            edit(CONFIG, |config| config["architectures"] = json!(["MambaForCausalLM"])),
            "MambaForCausalLM is not known",
        ),
        (edit(CONFIG, |config| config["hidden_act"] = json!("softplus")), "softplus"),
        (
            edit(CONFIG, |config| config["rope_scaling"] = json!({"rope_type": "warp"})),
            "\"warp\" is not supported",
        ),
        (edit(CONFIG, |config| config["rope_theta"] = json!(-3)), "rope_theta: expected a number above 1"),
        (
            edit(CONFIG, |config| config["quantization_config"] = json!({"quant_method": "bitsandbytes"})),
            "bitsandbytes",
        ),
        (
            edit(CONFIG, |config| config["quantization_config"] = json!({"quant_method": "gptq", "bits": 3})),
            "expected 4 or 8",
        ),
        (write(GENERATION, "{"), "generation_config.json"),
        (write(GENERATION, r#"{"eos_token_id": "hot"}"#), "eos_token_id: expected a token id"),
        (write(GENERATION, r#"{"eos_token_id": 5000}"#), "5000 is not in the vocabulary"),
    ]
}

fn weights() -> Vec<(Break, &'static str)> {
    vec![
        (remove(WEIGHTS), "weights"),
        (only("pytorch_model.bin"), "convert"),
        (only("consolidated.safetensors"), "consolidated.safetensors"),
        (only("adapter_model.safetensors"), "adapter"),
        (write(WEIGHTS, ""), "model.safetensors"),
        (write(WEIGHTS, POINTER), "is a pointer of git lfs"),
        (bytes(|bytes| bytes[..bytes.len() - 1024].to_vec()), "1024 bytes missing"),
        (
            bytes(|bytes| [&(1u64 << 40).to_le_bytes()[..], &bytes[8..]].concat()),
            "header length 1099511627776",
        ),
        (bytes(|bytes| [&bytes[..8], b"[", &bytes[9..]].concat()), "model.safetensors"),
        (one_tensor(DType::F32, 4), "is missing"),
        (one_tensor(DType::I64, 8), "is missing"),
        (edit(CONFIG, |config| config["num_hidden_layers"] = json!(3)), "model.layers.2"),
        (edit(CONFIG, |config| config["intermediate_size"] = json!(96)), "expected shape [96, 64]"),
        (edit(CONFIG, |config| config["tie_word_embeddings"] = json!(false)), "lm_head.weight"),
        (
            bytes(|mut bytes| {
                let end = bytes.len();
                bytes[end - 4..].fill(0xff);
                bytes
            }),
            "NaN",
        ),
        (shards(|folder| fs::remove_file(folder.join(SHARD)).unwrap()), "is missing"),
        (shards(|folder| fs::remove_file(folder.join(INDEX)).unwrap()), "index"),
        (shards(|folder| fs::write(folder.join(INDEX), "{}").unwrap()), "weight_map"),
        (shards(|folder| fs::write(folder.join(SHARD), POINTER).unwrap()), "is a pointer of git lfs"),
    ]
}

fn texts() -> Vec<(Break, &'static str)> {
    vec![
        (remove(TOKENIZER), "tokenizer.json"),
        (write(TOKENIZER, "{}"), "tokenizer.json"),
        (write(TOKENIZER, "{\"model\":"), "tokenizer.json"),
        (write(TOKENIZER, POINTER), "is a pointer of git lfs"),
        (edit(CONFIG, |config| config["vocab_size"] = json!(100)), "vocab"),
        (edit("tokenizer_config.json", |config| config["eos_token"] = json!("nobody")), "nobody"),
        (write("tokenizer_config.json", "[1]"), "tokenizer_config.json"),
        (edit(TOKENIZER, |tokenizer| tokenizer["model"]["merges"] = json!([["a", "nobody"]])), "nobody"),
        (write(TEMPLATE, "{% for %}"), "chat template"),
        (write(TEMPLATE, "{{ messages | nobody }}"), "nobody"),
        (write(TEMPLATE, "{% for i in range(100000000) %}x{% endfor %}"), "chat template"),
        (write(TEMPLATE, [0xff, 0xfe]), "chat_template.jinja"),
    ]
}

/// Ways to break a GGUF file.
type BreakFile = fn(&mut GgufWriter);

fn files() -> Vec<(BreakFile, &'static str)> {
    use MetadataValue::{I32s, String, Strings, U32};
    vec![
        (|file| file.replace("general.architecture", String("mamba".into())), "\"mamba\" is not supported"),
        (
            |file| file.replace("llama.block_count", String("two".into())),
            "llama.block_count: expected an integer",
        ),
        (|file| file.replace("llama.block_count", U32(1)), "llama.block_count: 1, but"),
        (|file| file.replace("llama.embedding_length", U32(0)), "llama.embedding_length: expected 1 to"),
        (|file| file.set("llama.vocab_size", U32(32000)), "llama.vocab_size: 32000, but"),
        (|file| file.set("llama.rope.scaling.type", String("warp".into())), "\"warp\" is not supported"),
        (|file| file.replace("tokenizer.ggml.model", String("t5".into())), "\"t5\" is not supported"),
        (|file| file.replace("tokenizer.ggml.pre", String("nobody".into())), "nobody"),
        (|file| file.replace("tokenizer.ggml.tokens", Strings(Vec::new())), "tokenizer.ggml"),
        (|file| file.replace("tokenizer.ggml.token_type", I32s(vec![1])), "expected 267 entries, given 1"),
        (|file| file.replace("tokenizer.ggml.merges", Strings(vec!["x".into()])), "does not join two tokens"),
        (|file| file.replace("tokenizer.ggml.eos_token_id", U32(999)), "tokenizer.ggml.eos_token_id: 999"),
        (|file| file.replace("tokenizer.ggml.add_bos_token", U32(1)), "expected a boolean"),
        (|file| file.replace("tokenizer.chat_template", String("{% for %}".into())), "chat template"),
        (|file| file.set("general.alignment", U32(33)), "power of two"),
        (|file| file.add("token_embd.weight", DType::F32, &[1], vec![0; 4]), "given twice"),
    ]
}

#[test]
fn at_least_forty_broken_models_are_told_before_the_device_is_given_anything() {
    let (folders, files) = (folders(), files());
    assert!(folders.len() + files.len() >= 40);
    let mut wrong = Vec::new();
    for (at, (break_it, says)) in folders.iter().enumerate() {
        let folder = sound();
        break_it(folder.path());
        let said = refusal(folder.path());
        if !said.contains(says) {
            wrong.push(format!("folder {at}: {says:?} is not in {said}"));
        }
    }
    for (at, (break_it, says)) in files.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut file) = (folder.path().join("model.gguf"), TinyModel::llama().to_gguf());
        break_it(&mut file);
        fs::write(&path, file.to_bytes()).unwrap();
        let said = refusal(&path);
        if !said.contains(says) {
            wrong.push(format!("file {at}: {says:?} is not in {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_wrong_with_the_texts_is_told_with_what_is_wrong_with_the_rest() {
    let folder = sound();
    write(TOKENIZER, "{}")(folder.path());
    edit(CONFIG, |config| config["hidden_size"] = json!(0))(folder.path());
    let said = refusal(folder.path());
    assert!(said.contains("hidden_size") && said.contains("tokenizer.json"), "{said}");
}

fn sound() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    folder
}
