//! The program from outside: standard output, standard error and exit codes, on a tiny model.

#[path = "common/program.rs"]
mod program;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use program::{Ran, Tiny, command, run};
use quire::kernels::DType;
use quire::models::testing::TinyModel;
use serde_json::Value;

impl Tiny {
    /// `quire COMMAND MODEL WORDS...`
    fn run(&self, command: &str, words: &[&str]) -> Ran {
        run(&[&[command, &self.path()], words].concat(), "")
    }

    fn generate(&self, words: &[&str]) -> Ran {
        self.run("generate", &[&["--prompt", "hello", "--temperature", "0", "--ignore-eos"], words].concat())
    }
}

#[test]
fn only_the_text_goes_to_standard_output() {
    let tiny = Tiny::new();
    let ran = tiny.generate(&["--max-tokens", "8"]).ok();
    let line = &tiny.generate(&["--max-tokens", "8", "--output-format", "json"]).ok().lines()[0];
    assert_eq!(ran.stdout, format!("{}\n", line["text"].as_str().expect("a text")));
    assert!(ran.stderr.contains("max_num_seqs"), "the configuration is logged: {}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'), "no colour where there is no terminal");
}

#[test]
fn an_output_line_has_all_fields_in_their_order() {
    let tiny = Tiny::new();
    let ran = tiny.generate(&["--max-tokens", "3", "--logprobs", "2", "--output-format", "json"]).ok();
    let line = &ran.lines()[0];
    let fields: Vec<_> = line.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "index",
        "output_index",
        "prompt_token_ids",
        "token_ids",
        "text",
        "finish_reason",
        "stop_reason",
        "logprobs",
        "num_cached_tokens",
        "metrics",
    ];
    assert_eq!(fields, expected);
    assert_eq!(line["token_ids"].as_array().map(Vec::len), Some(3));
    assert_eq!(line["logprobs"].as_array().map(Vec::len), Some(3));
    assert_eq!((&line["finish_reason"], &line["stop_reason"]), (&Value::from("length"), &Value::Null));
    for metric in ["queue_ms", "ttft_ms", "tpot_ms", "e2e_ms"] {
        assert!(line["metrics"][metric].is_f64(), "{metric}: {line}");
    }
}

#[test]
fn outputs_come_in_the_order_of_the_lines_and_equal_lone_runs() {
    let tiny = Tiny::new();
    let input = tiny.input(
        "{\"prompt\": \"hello\", \"max_tokens\": 20}\n\
         {\"prompt_token_ids\": [5, 6, 7], \"max_tokens\": 2}\n\n\
         {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 3, \"seed\": 1, \"temperature\": 1}\n",
    );
    let words = ["--input", input.as_str(), "--temperature", "0", "--ignore-eos"];
    let lines = tiny.run("generate", &words).ok().lines();
    let indexes: Vec<_> = lines.iter().map(|line| line["index"].as_u64().expect("a number")).collect();
    assert_eq!(indexes, [0, 1, 2]);
    let num_tokens = lines.iter().map(|line| line["token_ids"].as_array().expect("ids").len());
    assert_eq!(num_tokens.collect::<Vec<_>>(), [20, 2, 3]);
    assert_eq!(lines[1]["prompt_token_ids"], serde_json::json!([5, 6, 7]));
    let alone = tiny.generate(&["--max-tokens", "20"]).ok().stdout;
    assert_eq!(alone, format!("{}\n", lines[0]["text"].as_str().expect("a text")));
}

#[test]
fn every_line_says_whose_output_it_is_and_which() {
    let tiny = Tiny::new();
    let requests: String = [1, 3, 1, 2].map(|n| format!("{{\"prompt\": \"hello\", \"n\": {n}}}\n")).concat();
    let input = tiny.input(&requests);
    let words = ["--input", input.as_str(), "--temperature", "1", "--max-tokens", "2", "--seed", "3"];
    let lines = tiny.run("generate", &words).ok().lines();
    let number = |line: &Value, name: &str| line[name].as_u64().expect("a number");
    let places: Vec<_> =
        lines.iter().map(|line| (number(line, "index"), number(line, "output_index"))).collect();
    assert_eq!(places, [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1)]);
}

#[test]
fn requests_are_read_from_standard_input_too() {
    let tiny = Tiny::new();
    let words = ["generate", &tiny.path(), "--input", "-", "--output-format", "text", "--max-tokens", "2"];
    let ran = run(&words, "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n").ok();
    assert!(ran.stdout.lines().count() >= 2, "{}", ran.stdout);
}

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
fn what_does_not_show_is_said() {
    let tiny = Tiny::new();
    let warned = tiny.run("generate", &["--input", &tiny.input("\n")]).ok();
    assert!(warned.stdout.is_empty() && warned.stderr.contains("holds no request"), "{}", warned.stderr);
    let flags = ["--prompt", "a", "--max-tokens", "1", "--logprobs", "1"];
    let unseen = tiny.run("generate", &flags).ok().stderr;
    assert!(unseen.contains("--output-format json shows them"), "{unseen}");
    let seen = tiny.run("generate", &[&flags[..], &["--output-format", "json"]].concat()).ok().stderr;
    assert!(!seen.contains("--output-format"), "{seen}");
}

#[test]
fn an_empty_prompt_is_refused() {
    Tiny::new().run("generate", &["--prompt", ""]).refused(&["the prompt is empty"]);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let tiny = Tiny::new();
    let line = "{\"prompt\": \"a\", \"max_tokens\": 30, \"ignore_eos\": true}\n".repeat(400);
    let input = tiny.input(&line);
    let words = ["generate", &tiny.path(), "--input", &input, "--log-level", "error"];
    let mut child = command(&words).spawn().expect("the program was built for this test");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn a_conversation_outlives_what_it_cannot_take() {
    let tiny = Tiny::new();
    let words = [
        "chat",
        &tiny.path(),
        "--max-model-len",
        "64",
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--ignore-eos",
    ];
    let once = run(&words, "hi\n").ok().stdout;
    let long = "far too long ".repeat(40);
    let ran = run(&words, &format!("{long}\nhi\n"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.stdout, once, "the long message was left out");
    for part in ["max_model_len is 64", "tokens", "/reset", "1 of 2 turns failed"] {
        assert!(ran.stderr.contains(part), "`{part}` is not in: {}", ran.stderr);
    }
    let mut child = command(&words).spawn().expect("the program was built for this test");
    child.stdin.take().expect("piped").write_all(b"\xff\xfe\nhi\n").expect("read by the program");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
        (Some(1), once.as_str())
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("not UTF-8"));
}

#[test]
fn a_conversation_goes_on_over_its_turns() {
    let tiny = Tiny::new();
    let words = ["chat", &tiny.path(), "--max-tokens", "5", "--temperature", "0", "--ignore-eos"];
    let ran = run(&words, "hello\n\nand now\n/reset\nhello\n/nonsense\n/exit\nnever read\n").ok();
    assert!(ran.stderr.contains("no command /nonsense"), "{}", ran.stderr);
    let once = run(&words, "hello\n").ok().stdout;
    assert!(ran.stdout.starts_with(&once) && ran.stdout.ends_with(&once), "{:?} and {once:?}", ran.stdout);
    assert!(ran.stdout.len() > 2 * once.len(), "the second turn was answered");
}

#[test]
fn a_model_without_a_chat_template_is_told_at_once() {
    let tiny = Tiny::new();
    let config = Path::new(&tiny.path()).join("tokenizer_config.json");
    let mut fields: Value = serde_json::from_slice(&fs::read(&config).expect("there")).expect("JSON");
    fields.as_object_mut().expect("an object").remove("chat_template");
    fs::write(&config, fields.to_string()).expect("writable");
    tiny.run("chat", &[]).refused(&["has no chat template", "--chat-template"]);
}

#[test]
fn files_in_place_of_the_models_own_are_read_before_its_weights() {
    let tiny = Tiny::new();
    let broken = tiny.input("{");
    for (flag, given, said) in [
        ("--chat-template", "/nonexistent.jinja", "/nonexistent.jinja cannot be read"),
        ("--chat-template", "{% if %}", "the chat template cannot be used"),
        ("--tokenizer", broken.as_str(), "the tokenizer cannot be used"),
    ] {
        for command in ["generate", "inspect"] {
            let prompt: &[&str] = if command == "generate" { &["--prompt", "a"] } else { &[] };
            let ran = tiny.run(command, &[&[flag, given][..], prompt].concat());
            assert!(!ran.stderr.contains("[model]"), "nothing is loaded yet: {}", ran.stderr);
            ran.refused(&[said]);
        }
    }
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
fn a_pool_below_the_longest_sequence_is_warned_of() {
    let tiny = Tiny::new();
    let words = ["--num-gpu-blocks-override", "2", "--max-model-len", "64", "--log-level", "warn"];
    let ran = tiny.generate(&[&words[..], &["--max-tokens", "2"]].concat()).ok();
    let warning = "num_gpu_blocks_override leaves room for 32 tokens, max_model_len is 64";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    let ran = tiny.generate(&["--max-model-len", "64", "--max-tokens", "2", "--log-level", "warn"]).ok();
    assert_eq!(ran.stderr, "");
}

#[test]
fn only_kernels_in_use_are_listed() {
    let ran = Tiny::new().generate(&["--max-tokens", "1"]).ok();
    let lines: Vec<_> = ran.stderr.lines().filter(|line| line.contains("[dispatch] linear.")).collect();
    assert!(lines.len() == 1 && lines[0].contains("linear.f32="), "{lines:?}");
}

/// The download is somebody else's program: it must not outlive this one.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_download_leaves_nothing_running() {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    let folder = tempfile::tempdir().expect("a folder for tests");
    let (python, pid_file) = (folder.path().join("python3"), folder.path().join("pid"));
    let script = format!("#!/bin/sh\necho $$ > '{}'\nexec sleep 600\n", pid_file.display());
    fs::write(&python, script).expect("writable");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("ours");

    let mut quire = command(&["generate", "--prompt", "a"]);
    quire.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", "http://127.0.0.1:9");
    quire.env("QUIRE_CACHE", folder.path().join("cache")).stderr(Stdio::null());
    let mut child =
        quire.env("PATH", format!("{}:/bin:/usr/bin", folder.path().display())).spawn().expect("built");
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let download = || fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok();
    wait_for("the download begins", &|| download().is_some());
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.expect("there is a kill").success());
    assert!(!child.wait().expect("it ends").success());
    let program = format!("/proc/{}/cmdline", download().expect("it began"));
    // One that has ended and that nobody has waited for has no words.
    wait_for("the download ends", &|| {
        fs::read(&program).is_ok_and(|words| words.is_empty()) || !Path::new(&program).exists()
    });
}

#[test]
fn a_fingerprint_is_that_of_model_dtypes_and_kernels() {
    let fingerprint = |tiny: &Tiny, flags: &[&str]| {
        let ran = tiny.run("inspect", &[&["--output-format", "json"], flags].concat()).ok();
        ran.lines()[0]["fingerprint"].as_str().expect("a number in hexadecimal").to_owned()
    };
    let (one, same) = (Tiny::new(), Tiny::new());
    let plain = fingerprint(&one, &[]);
    assert_eq!(plain, fingerprint(&same, &["--max-num-seqs", "3"]), "neither the place nor the batch counts");
    for flags in [&["--kv-cache-dtype", "fp8"][..], &["--dtype", "bfloat16"], &["--quantization", "fp8"]] {
        assert_ne!(plain, fingerprint(&one, flags), "{flags:?}");
    }
}

#[test]
fn a_fingerprint_without_a_revision_is_that_of_every_file() {
    let fingerprint = |tiny: &Tiny, flags: &[&str]| {
        let ran = tiny.run("inspect", &[&["--output-format", "json"], flags].concat()).ok();
        ran.lines()[0]["fingerprint"].as_str().expect("a number in hexadecimal").to_owned()
    };
    let plain = fingerprint(&Tiny::new(), &[]);
    let append = |file: &str, text: &str| {
        let tiny = Tiny::new();
        let path = Path::new(&tiny.path()).join(file);
        let old = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, old + text).expect("writable");
        fingerprint(&tiny, &[])
    };
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        assert_ne!(append(file, "\n"), plain, "{file}");
    }
    assert_ne!(append("chat_template.jinja", "{{ 1 }}"), plain);
    assert_eq!(append("README.md", "nothing reads it"), plain);
    // The last weight, far from every header.
    let tiny = Tiny::new();
    let path = Path::new(&tiny.path()).join("model.safetensors");
    let mut bytes = fs::read(&path).expect("there");
    let end = bytes.len();
    bytes[end - 4] ^= 1;
    fs::write(path, bytes).expect("writable");
    assert_ne!(fingerprint(&tiny, &[]), plain);
    // What is given in place of the model's own.
    let (tiny, other) = (Tiny::new(), Tiny::new());
    assert_ne!(fingerprint(&tiny, &["--chat-template", "{{ 1 }}"]), plain);
    assert_ne!(fingerprint(&tiny, &["--tokenizer", &other.path()]), plain);
}

#[test]
fn a_model_is_inspected_without_its_weights() {
    let tiny = Tiny::new();
    let ran = tiny.run("inspect", &["--output-format", "json", "--max-num-seqs", "4"]).ok();
    let report = &ran.lines()[0];
    assert_eq!(report["architecture"], "LlamaForCausalLM");
    for field in ["weight_bytes", "scratch_bytes", "kv_cache_bytes", "num_blocks", "max_model_len"] {
        assert!(report[field].as_u64().is_some_and(|number| number > 0), "{field}: {report}");
    }
    fs::remove_file(Path::new(&tiny.path()).join("tokenizer.json")).expect("there");
    let ran = tiny.run("inspect", &[]).ok();
    assert!(ran.stderr.contains("would refuse this model"), "{}", ran.stderr);
    let text = ran.stdout;
    assert!(text.contains("LlamaForCausalLM") && text.contains("blocks"), "{text}");
}

/// A cache of the hub as any client of it leaves it.
#[test]
fn a_cached_model_is_taken_offline_and_its_commit_is_shown() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let (tiny, home) = (Tiny::new(), tempfile::tempdir().expect("a folder for tests"));
    let repo = home.path().join("hub/models--org--tiny");
    let snapshot = repo.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).expect("writable");
    fs::create_dir_all(repo.join("refs")).expect("writable");
    fs::write(repo.join("refs/main"), COMMIT).expect("writable");
    for entry in fs::read_dir(tiny.path()).expect("there").flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), snapshot.join(entry.file_name())).expect("writable");
    }
    let run = |words: &[&str]| {
        let mut command = command(&[words, &["org/tiny", "--offline"]].concat());
        command.env_remove("HF_HUB_OFFLINE").env("HF_HOME", home.path());
        let output = command.env("HF_ENDPOINT", "http://127.0.0.1:9").output().expect("the program ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let text = run(&["inspect"]);
    let revision = text.lines().find_map(|line| line.strip_prefix("revision"));
    assert_eq!(revision.map(str::trim), Some(COMMIT), "{text}");
    let report: serde_json::Value =
        serde_json::from_str(&run(&["inspect", "--output-format", "json"])).expect("json");
    assert_eq!(report["revision"], COMMIT);
    assert!(run(&["check"]).contains("0 problems"));
    // A model without a commit has no such line.
    let text = tiny.run("inspect", &[]).ok().stdout;
    assert!(!text.contains("revision"), "{text}");
}

#[test]
fn misspelt_names_in_the_environment_are_warned_of() {
    let tiny = Tiny::new();
    let mut command = command(&["inspect", &tiny.path()]);
    let output = command.env("VLLM_CPU_KVCACHE_SPAC", "1").output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("the nearest is VLLM_CPU_KVCACHE_SPACE"), "{stderr}");
}

#[test]
fn a_file_loses_no_request_however_few_may_wait() {
    let tiny = Tiny::new();
    let lines = "{\"prompt\": \"hello\", \"max_tokens\": 3, \"temperature\": 0}\n".repeat(12);
    let input = tiny.input(&lines);
    let words = ["--input", &input, "--max-num-seqs", "1", "--max-num-waiting", "2"];
    let lines = tiny.run("generate", &words).ok().lines();
    assert_eq!(lines.len(), 12);
    assert!(lines.iter().all(|line| line.get("error").is_none()), "{lines:?}");
}

#[test]
fn sampling_defaults_that_no_request_may_have_are_warned_of_and_not_used() {
    let tiny = Tiny::new();
    let file = Path::new(&tiny.path()).join("generation_config.json");
    fs::write(&file, "{\"top_p\": 7, \"temperature\": 100}").expect("writable");
    let run = tiny.generate(&["--max-tokens", "1"]).ok();
    for said in ["top_p is 7", "temperature is 100: requests get 2", "generation_config.json"] {
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
    let quiet = tiny.generate(&["--max-tokens", "1", "--generation-config", "none"]).ok();
    assert!(!quiet.stderr.contains("top_p is 7"), "{}", quiet.stderr);
}

#[test]
fn there_is_one_cpu() {
    let tiny = Tiny::new();
    tiny.generate(&["--device", "cpu:7", "--max-tokens", "1"]).refused(&["one CPU device", "cpu:7"]);
    tiny.generate(&["--device", "cpu:0", "--max-tokens", "1"]).ok();
}

#[test]
fn a_check_says_everything_that_is_wrong_and_exits_with_1() {
    let tiny = Tiny::new();
    let sound = tiny.run("check", &[]).ok();
    assert!(sound.stdout.contains("0 problems"), "{}", sound.stdout);
    let empty = tempfile::tempdir().expect("a folder");
    let ran = run(&["check", &empty.path().display().to_string()], "");
    assert!(
        ran.stdout.contains("1 problem, 0 notes") && ran.stderr.contains("has 1 problem\n"),
        "{}",
        ran.stderr
    );
    let folder = Path::new(&tiny.path()).to_owned();
    let weights = fs::read(folder.join("model.safetensors")).expect("there");
    fs::write(folder.join("model.safetensors"), &weights[..weights.len() - 1024]).expect("writable");
    fs::write(folder.join("tokenizer_config.json"), "{\"eos_token\": \"<nothing>\"}").expect("writable");

    let ran = tiny.run("check", &["--full"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in ["broken-file", "bytes missing", "special-token", "<nothing>", "model.safetensors"] {
        assert!(ran.stdout.contains(part), "`{part}` is not in: {}", ran.stdout);
    }
    let ran = tiny.run("check", &["--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let line = &ran.lines()[0];
    assert_eq!(line["ok"], false);
    let findings = line["findings"].as_array().expect("a list");
    let missing = findings.iter().find(|finding| finding["kind"] == "broken-file").expect("one");
    assert!(missing["tensor"].is_string() && missing["bytes"].as_u64().is_some_and(|n| n > 0), "{missing}");
    // Loading refuses it for the same, and the words are those of the check.
    let refused = tiny.generate(&["--max-tokens", "1"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("bytes missing"), "{}", refused.stderr);
    tiny.run("check", &["--full", "--headers"]).refused(&["cannot be used with"]);
}

#[test]
fn a_check_for_programs_always_writes_a_line() {
    let ran = run(&["check", "smolm2", "--json"], "");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let line = &ran.lines()[0];
    assert_eq!((&line["ok"], &line["findings"][0]["kind"]), (&Value::from(false), &Value::from("not-found")));
}

#[test]
fn a_file_that_is_no_model_is_told_with_the_way_to_one() {
    let tiny = Tiny::new();
    let path = tiny.folder.path().join("pytorch_model.bin");
    fs::write(&path, "PK").expect("writable");
    let ran = run(&["check", &path.display().to_string()], "");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("pickled-weights") && ran.stdout.contains("save_pretrained"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_tokenizer_that_makes_its_library_panic_leaves_no_trace_of_that() {
    let tiny = Tiny::new();
    let path = Path::new(&tiny.path()).join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("json");
    tokenizer["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {},
    });
    fs::write(&path, tokenizer.to_string()).expect("writable");
    let ran = tiny.run("check", &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("ends in the midst of it") && !ran.stderr.contains("panicked"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_chat_template_that_cannot_be_rendered_is_a_problem() {
    let tiny = Tiny::new();
    let template = "{{ messages | no_such_filter }}";
    fs::write(Path::new(&tiny.path()).join("chat_template.jinja"), template).expect("writable");
    let ran = tiny.run("check", &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stdout.contains("chat-template") && ran.stdout.contains("no_such_filter"), "{}", ran.stdout);
}

#[test]
fn a_quantization_is_checked_against_the_model_or_made() {
    let tiny = Tiny::new();
    tiny.generate(&["--max-tokens", "2", "--quantization", "fp8"]).ok();
    let report = &tiny.run("inspect", &["--output-format", "json", "--quantization", "fp8"]).ok().lines()[0];
    assert!(report["weight_bytes_by_dtype"]["fp8_e4m3"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
    tiny.generate(&["--max-tokens", "2", "--quantization", "awq"])
        .refused(&["quantization", "not quantized"]);
    tiny.generate(&["--quantization", "marlin"]).refused(&["quantization", "marlin", "gptq, awq, fp8"]);
}

#[test]
fn render_shows_a_prompt_and_its_tokens_without_running() {
    let tiny = Tiny::new();
    let ran = tiny.run("render", &["--prompt", "hello"]).ok();
    assert!(ran.stdout.starts_with("hello\n\n") && ran.stdout.contains(" tokens: "), "{}", ran.stdout);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("chat.json");
    fs::write(&path, r#"{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true}"#)
        .expect("a file");
    let file = path.to_str().expect("a path of text");
    let rendered = &tiny.run("render", &["--chat", file, "--json"]).ok().lines()[0];
    assert_eq!(rendered["text"], "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    assert!(rendered["token_ids"].as_array().is_some_and(|ids| ids.len() > 8), "{rendered}");

    fs::write(&path, "{}").expect("a file");
    let refused = tiny.run("render", &["--chat", file]);
    assert!(
        refused.stderr.contains("not a list of messages, nor an object with messages"),
        "{}",
        refused.stderr
    );
    assert_eq!(refused.code, Some(2));
}
