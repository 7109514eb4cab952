//! What is refused, with which words and which exit code.

use std::fs;
use std::path::Path;

use quire::kernels::DType;
use quire::models::testing::TinyModel;

use crate::program::{Tiny, run};

#[test]
fn bad_lines_are_all_listed_before_anything_runs() {
    let tiny = Tiny::new();
    let input = tiny.input("{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"max_token\": 1}\n[]\n");
    let expected =
        ["2 bad line(s), nothing was run", "line 2: max_token is not", "line 3: not a JSON object"];
    tiny.run("generate", &["--input", &input]).refused(&expected);
}

#[test]
fn lines_that_only_the_model_can_refuse_are_listed_too() {
    let tiny = Tiny::new();
    let long = format!("{{\"prompt_token_ids\": {:?}}}", vec![5; 64]);
    let input = tiny.input(&format!("{{\"prompt\": \"a\"}}\n{long}\n{{\"prompt_token_ids\": [1000000]}}\n"));
    let words = ["--input", input.as_str(), "--max-model-len", "64"];
    tiny.run("generate", &words).refused(&["line 2: ", "64", "line 3: ", "1000000"]);
}

#[test]
fn what_the_parser_and_the_model_refuse_is_one_list() {
    let tiny = Tiny::new();
    let input = tiny.input(
        "{\"prompt\": \"a\"}\n{\"prompt\": \"\"}\n{}\n{\"prompt\": \"a\", \"logprobs\": 21}\n\
         {\"prompt_token_ids\": []}\n{\"messages\": []}\n{\"prompt_token_ids\": [1000000]}\n",
    );
    let ran = tiny.run("generate", &["--input", &input]);
    let numbers: Vec<_> =
        ran.stderr.lines().filter_map(|line| line.trim_start().strip_prefix("line ")).collect();
    let numbers: Vec<_> = numbers.iter().map(|line| &line[..1]).collect();
    assert_eq!(numbers, ["2", "3", "4", "5", "6", "7"], "{}", ran.stderr);
    ran.refused(&[
        "6 bad line(s), nothing was run",
        "line 4: logprobs is 21: expected 0 to max_logprobs = 20",
    ]);
}

/// Every flag with a wrong value: a message that names flag or setting, and code 2.
#[test]
fn wrong_flag_values_are_refused_by_name() {
    let tiny = Tiny::new();
    for (flag, value, parts) in [
        ("--max-tokens", "x", ["--max-tokens", "x"]),
        ("--max-tokens", "0", ["max_tokens", "at least 1"]),
        ("--min-tokens", "99", ["min_tokens", "at most max_tokens"]),
        ("--temperature", "-1", ["temperature", "-1"]),
        ("--temperature", "nan", ["--temperature", "finite number"]),
        ("--top-p", "0", ["top_p", "above 0"]),
        ("--top-k", "-2", ["top_k", "-2"]),
        ("--top-k", "1.5", ["--top-k", "1.5"]),
        ("--min-p", "1.5", ["min_p", "1.5"]),
        ("--stop", "", ["stop", "empty"]),
        ("--stop-token-ids", "1,x", ["--stop-token-ids", "x"]),
        ("--stop-token-ids", "9999999", ["stop_token_ids", "9999999"]),
        ("--logprobs", "-5", ["logprobs", "0 to max_logprobs = 20"]),
        ("--max-logprobs", "1000000", ["max_logprobs", "vocabulary"]),
        ("--max-tokens", "-1", ["--max-tokens", "0 or more"]),
        ("--threads", "-1", ["--threads", "1 to 4096"]),
        ("--enable-prefix-caching", "maybe", ["--enable-prefix-caching", "maybe"]),
        ("--logprobs", "1000", ["logprobs", "1000"]),
        ("--presence-penalty", "3", ["presence_penalty", "3"]),
        ("--frequency-penalty", "-3", ["frequency_penalty", "-3"]),
        ("--repetition-penalty", "0", ["repetition_penalty", "0"]),
        ("--block-size", "x", ["block_size", "whole number"]),
        ("--block-size", "7", ["block_size", "7"]),
        ("--max-model-len", "-7", ["max_model_len", "-7"]),
        ("--max-model-len", "1000k", ["max_model_len", "1000000"]),
        ("--max-num-seqs", "0", ["max_num_seqs", "0"]),
        ("--max-num-batched-tokens", "1", ["max_num_batched_tokens", "1"]),
        ("--num-gpu-blocks-override", "0", ["num_gpu_blocks_override", "0"]),
        ("--kv-cache-memory", "lots", ["kv_cache_memory", "lots"]),
        ("--kv-cache-memory", "1", ["kv_cache_memory", "at least"]),
        ("--kv-cache-dtype", "int3", ["kv_cache_dtype", "int3"]),
        ("--dtype", "int3", ["dtype", "int3"]),
        ("--device", "tpu", ["unknown device `tpu`", "auto, cpu, cuda"]),
        ("--threads", "many", ["--threads", "many"]),
        ("--threads", "0", ["--threads", "0"]),
        (
            "--scheduling-policy",
            "lifo",
            [
                "unknown scheduling policy `lifo`",
                "fair, fcfs, length-bucket, prefix-aware, priority, shortest-first",
            ],
        ),
        ("--load-format", "pt", ["load_format", "pt"]),
        ("--swap-space", "-1", ["swap_space", "at least 0"]),
        ("--preemption-mode", "swap", ["preemption_mode", "swap_space above 0"]),
        ("--tensor-parallel-size", "2", ["tensor_parallel_size", "not built"]),
        ("--quantization", "awq", ["quantization", "awq"]),
        ("--log-level", "quire=loud", ["--log-level", "quire=loud"]),
        ("--output-format", "xml", ["--output-format", "xml"]),
        ("--model", "other", ["given twice", "other"]),
        ("--no-such-flag", "1", ["--no-such-flag", "--help"]),
    ] {
        eprintln!("{flag} {value}");
        tiny.run("generate", &["--prompt", "a", &format!("{flag}={value}")]).refused(&parts);
    }
}

/// A program that has CUDA names the library that it looked for; where there is one, CUDA may well work.
#[test]
fn cuda_that_is_not_built_or_not_installed_is_refused() {
    let tiny = Tiny::new();
    let ran = || tiny.run("generate", &["--prompt", "a", "--device=cuda"]);
    if !quire_kernels_cuda::IS_BUILT {
        ran().refused(&["cuda", "not built into this program", "--features cuda"]);
    } else if !std::path::Path::new("/dev/nvidiactl").exists() {
        ran().refused(&["cuda", "libcuda.so.1", "--device cpu"]);
    }
}

#[test]
fn a_wrong_model_lists_what_was_tried() {
    let refused = |model: &str, parts: &[&str]| run(&["generate", model, "--prompt", "a"], "").refused(parts);
    refused("smolm2", &["no folder or .gguf file at smolm2", "known: smollm2-135m", "not a Hugging Face id"]);
    let other = run(&["generate", "Cargo.toml", "--prompt", "a"], "");
    other.failed(1, &["Cargo.toml is not a model: expected a gguf file or a folder with config.json"]);
    let offline = run(&["generate", "org/name", "--prompt", "a"], "");
    offline.failed(1, &["offline (--offline or HF_HUB_OFFLINE) and org/name is not in"]);
}

#[test]
fn a_broken_model_is_an_error_of_the_run() {
    let tiny = Tiny::new();
    fs::remove_file(Path::new(&tiny.path()).join("model.safetensors")).expect("there");
    tiny.run("generate", &["--prompt", "a"]).failed(1, &["model.safetensors"]);
}

#[test]
fn what_is_not_there_says_so() {
    run(&["generate"], "").refused(&["--prompt"]);
    run(&["generate", "--prompt", "a", "--input", "b"], "").refused(&["--input"]);
    run(&["generate", "--input", "/nonexistent.jsonl"], "").refused(&["/nonexistent.jsonl"]);
    run(&["generate", "--input", "/"], "").refused(&["/: is a directory"]);
    Tiny::new().generate(&["--tokenizer", "/nonexistent"]).refused(&["/nonexistent"]);
}

#[test]
fn an_empty_prompt_is_refused() {
    Tiny::new().run("generate", &["--prompt", ""]).refused(&["the prompt is empty"]);
}

#[test]
fn what_cannot_be_computed_is_refused_by_every_command() {
    let gelu = TinyModel::llama().with_config("hidden_act", "gelu");
    let marlin =
        TinyModel::llama().with_config("quantization_config", serde_json::json!({"quant_method": "marlin"}));
    for (model, said) in [
        (gelu, "hidden_act = gelu is not supported, expected silu"),
        (marlin, "\"marlin\" is not supported; known are gptq, awq, fp8"),
    ] {
        let tiny = Tiny::new();
        model.write_folder(Path::new(&tiny.path())).expect("writable");
        for words in [&["generate", "--prompt", "a"][..], &["inspect"]] {
            tiny.run(words[0], &words[1..]).failed(1, &[said]);
        }
    }
}

#[test]
fn weights_of_8_bits_without_scales_are_refused() {
    let tiny = Tiny::new();
    let fp8 = TinyModel { dtype: DType::F8E4M3, ..TinyModel::llama() };
    fp8.write_folder(Path::new(&tiny.path())).expect("writable");
    tiny.generate(&["--max-tokens", "2"]).failed(1, &["without a scale", "quantization_config"]);
}

#[test]
fn there_is_one_cpu() {
    let tiny = Tiny::new();
    tiny.generate(&["--device", "cpu:7", "--max-tokens", "1"]).refused(&["one CPU device", "cpu:7"]);
    tiny.generate(&["--device", "cpu:0", "--max-tokens", "1"]).ok();
}
